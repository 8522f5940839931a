// Package deploy checks what gpupool is deployed with: each file by the tool that will read it.
//
// Not here: the lab and the virtual machine, which run gpupool (see deploy/lab, deploy/qemu).
package deploy
