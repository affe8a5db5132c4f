package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// networkFileSystems are those on which the recorder takes its written back end when it may choose: f_type of statfs(2), as in
// preload/filesystem.c.
var networkFileSystems = map[uint32]string{
	0x6969: "nfs", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x517B: "smb", 0xFF534D42: "cifs", 0xFE534D42: "smb2", 0x65735546: "fuse",
	0x00C36400: "ceph", 0x19830326: "beegfs", 0x01021997: "9p", 0x5346414F: "afs", 0x20030528: "pvfs2",
}

var localFileSystems = map[uint32]string{
	0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x794C7630: "overlay", 0x2FC12FC1: "zfs",
}

// fileSystem names the file system that path is on, or will be: the nearest directory that exists counts.
func fileSystem(path string) (name string, network bool) {
	var fs unix.Statfs_t
	for {
		err := unix.Statfs(path, &fs)
		if err == nil {
			break
		}
		if parent := filepath.Dir(path); parent != path && os.IsNotExist(err) {
			path = parent
			continue
		}
		return "unknown", false
	}
	kind := uint32(fs.Type) //nolint:gosec // f_type has 32 bits of meaning
	if name, network = networkFileSystems[kind]; network {
		return name, true
	}
	if name, known := localFileSystems[kind]; known {
		return name, false
	}
	return fmt.Sprintf("type %#x", kind), false
}
