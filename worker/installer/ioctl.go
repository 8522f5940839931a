package installer

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl is one with a pointer, or nil.
func ioctl[T any](f *os.File, request uintptr, arg *T) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

// blkpgPartition is struct blkpg_partition of linux/blkpg.h.
type blkpgPartition struct {
	start, length   int64 // bytes
	pno             int32
	devname, volume [64]byte
	_               [4]byte
}

// addPartition tells the kernel of a partition that no table on the disk shows yet.
func addPartition(f *os.File, p partition) error {
	d := blkpgPartition{start: p.start, length: p.end - p.start, pno: int32(p.number)}
	a := unix.BlkpgIoctlArg{Op: unix.BLKPG_ADD_PARTITION, Datalen: int32(unsafe.Sizeof(d)), Data: (*byte)(unsafe.Pointer(&d))}
	return ioctl(f, unix.BLKPG, &a)
}

// dropPartition takes addPartition back.
func dropPartition(f *os.File, number int) error {
	d := blkpgPartition{pno: int32(number)}
	a := unix.BlkpgIoctlArg{Op: unix.BLKPG_DEL_PARTITION, Datalen: int32(unsafe.Sizeof(d)), Data: (*byte)(unsafe.Pointer(&d))}
	return ioctl(f, unix.BLKPG, &a)
}

// ext4Resize is EXT4_IOC_RESIZE_FS of linux/ext4.h: _IOW('f', 16, __u64). It grows a mounted file system to so many blocks.
const ext4Resize = 0x40086610
