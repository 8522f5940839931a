#!/bin/sh
# What a loaded NVIDIA driver shows of the virtual machine's eight GPUs, beside its library: device nodes, and which belongs
# to which PCI address (driver README, "Device nodes" and /proc/driver/nvidia). Nothing answers behind the nodes.
set -eu
mount -t tmpfs -o mode=0755 driver /proc/driver
mknod -m 0666 /dev/nvidiactl c 195 255
for i in 0 1 2 3 4 5 6 7; do
	gpu=/proc/driver/nvidia/gpus/$(printf '0000:%02x:00.0' $((0x1b + i)))
	mkdir -p "$gpu"
	printf 'Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t %d\n' $i >"$gpu/information"
	mknod -m 0666 /dev/nvidia$i c 195 $i
done
