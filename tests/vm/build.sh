#!/bin/bash
# Makes what the virtual machines boot, in build/vm/, and prints the folder of the kernel: KERNEL/vmlinux, KERNEL/initramfs.cpio, and
# beside it root/, a folder of unpacked Debian packages that the guests mount. What is there already is kept: a new
# kernel package, or a change of this file, makes it anew.
set -eu
cd "$(dirname "$0")/../.."
B=$(realpath -m "${B:-build}")
top=$PWD
dir=$B/vm
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9

die() { echo "sigmatrace: error: vm: $*" >&2; exit 1; }

# The modules the guest needs: its disk (9p), its network, soft-RoCE. rdma_rxe asks the crypto API for crc32, and nothing
# in the guest would load it. e1000e's hardware clock stands still when emulated.
modules="e1000e virtio_pci virtio_net 9pnet_virtio 9p overlay virtio_rng dummy veth ib_uverbs rdma_ucm ib_umad crc32_generic crc32_pclmul rdma_rxe"

packages=base-files,dash,bash,coreutils,grep,sed,mawk,findutils,util-linux,hostname,libc-bin,iproute2,kmod,procps,iputils-ping,netbase
packages=$packages,rdma-core,ibverbs-utils,ibverbs-providers,perftest,rdmacm-utils,ucx-utils,libfabric-bin,openmpi-bin,linuxptp,chrony

# What decides the contents: this file and the initramfs's init.
recipe=$(cat tests/vm/build.sh tests/vm/init | sha256sum | cut -c1-16)

kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
[ -n "$kernel" ] || die "apt knows no linux-image-amd64: run apt-get update"

# unpack_kernel: vmlinuz and the modules' folders out of the package, a twentieth of it.
unpack_kernel() {
	local out=$1 deb
	(cd "$out" && apt-get download -qq -o APT::Sandbox::User=root "$kernel") >&2 || die "apt-get cannot download $kernel"
	deb=$(echo "$out"/*.deb)
	mkdir "$out/x"
	local m='./lib/modules/*/'
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$out/x" --wildcards './boot/vmlinuz-*' "${m}modules.*" \
		"${m}kernel/drivers/infiniband/core/*" "${m}kernel/drivers/infiniband/sw/*" "${m}kernel/drivers/virtio/*" \
		"${m}kernel/drivers/net/*.ko" "${m}kernel/drivers/ptp/*" "${m}kernel/drivers/pps/*" "${m}kernel/drivers/char/hw_random/virtio-rng.ko" "${m}kernel/net/9p/*" \
		"${m}kernel/net/core/*" "${m}kernel/net/ipv4/udp_tunnel.ko" "${m}kernel/net/ipv6/ip6_udp_tunnel.ko" \
		"${m}kernel/fs/9p/*" "${m}kernel/fs/netfs/*" "${m}kernel/fs/fscache/*" "${m}kernel/fs/overlayfs/*" \
		"${m}kernel/fs/configfs/*" "${m}kernel/crypto/crc32*" "${m}kernel/arch/x86/crypto/crc32*" "${m}kernel/lib/*"
	rm "$deb"
}

# extract_vmlinux BZIMAGE: the ELF kernel, which QEMU boots directly; unpacking it in the guest takes 10 s under emulation.
# The setup header has the payload's offset at 0x248 and its length at 0x24c (Documentation/x86/boot.rst).
extract_vmlinux() {
	local sectors offset length
	sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1")
	offset=$(od -An -tu4 -j $((0x248)) -N 4 "$1")
	length=$(od -An -tu4 -j $((0x24c)) -N 4 "$1")
	[ "$sectors" -gt 0 ] || sectors=4
	# After the xz stream comes its unpacked size, four bytes.
	tail -c +$(((sectors + 1) * 512 + offset + 1)) "$1" | head -c "$length" | xz --decompress --single-stream --stdout
}

make_initramfs() {
	local x=$1 out=$2 version work
	version=$(ls "$x/lib/modules")
	work=$(mktemp -d "$dir/initramfs.XXXXXX")
	mkdir -p "$work"/{bin,proc,sys,dev,ro,rw,new} "$work/lib/modules"
	cp /bin/busybox "$work/bin/busybox"
	cp tests/vm/init "$work/init"
	chmod +x "$work/init"
	depmod -b "$x" "$version"
	for m in $modules; do
		modprobe -d "$x" -S "$version" --show-depends "$m" || die "the kernel has no module $m"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r f; do
		cp "$f" "$work/lib/modules/"
		basename "$f" >>"$work/lib/modules/order"
	done
	(cd "$work" && find . | cpio -o -H newc --quiet) >"$out"
	rm -rf "$work"
}

# Unpacked packages without their maintainer scripts; what those would have set up is done here.
make_root() {
	local root=$1 apt_sources
	. tests/debian.sh
	find_apt_sources
	apt_options >"$dir/apt.conf"
	mmdebstrap --quiet --mode=root --variant=extract --include="$packages" --aptopt="$dir/apt.conf" bookworm "$root" \
		"${apt_sources[@]}" >&2
	ln -sf dash "$root/bin/sh"
	echo 'root:x:0:0:root:/root:/bin/bash' >"$root/etc/passwd"
	echo 'root:x:0:' >"$root/etc/group"
	mkdir -p "$root/root" "$root/proc" "$root/sys" "$root/run"
	printf '127.0.0.1 localhost\n10.9.0.1 vma\n10.9.0.2 vmb\n' >"$root/etc/hosts"
	[ -e "$root/usr/bin/mpirun" ] || ln -s mpirun.openmpi "$root/usr/bin/mpirun"
	[ -e "$root/usr/bin/awk" ] || ln -s mawk "$root/usr/bin/awk"
	ln -sf /usr/lib/libpsm1/libpsm_infinipath.so.1.16 "$root/usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1"
	ldconfig -r "$root" 2>/dev/null
}

renew_kernel() {
	local new=$dir/$kernel.new
	rm -rf "$new"
	mkdir "$new"
	unpack_kernel "$new"
	extract_vmlinux "$new"/x/boot/vmlinuz-* >"$new/vmlinux" || die "the payload of $kernel is no xz stream"
	make_initramfs "$new/x" "$new/initramfs.cpio"
	rm -rf "$new/x" "${dir:?}/$kernel"
	echo "$recipe" >"$new/recipe"
	mv "$new" "$dir/$kernel"
}
renew_root() {
	rm -rf "$dir/root" "$dir/root.new"
	make_root "$dir/root.new"
	mv "$dir/root.new" "$dir/root"
	echo "$recipe" >"$dir/root.recipe"
}

# Side by side: one waits for the network while the other unpacks.
pids=()
if [ "$(cat "$dir/$kernel/recipe" 2>/dev/null)" != "$recipe" ]; then renew_kernel & pids+=($!); fi
if [ "$(cat "$dir/root.recipe" 2>/dev/null)" != "$recipe" ]; then renew_root & pids+=($!); fi
for p in ${pids[@]+"${pids[@]}"}; do wait "$p"; done
cd "$top"
echo "$dir/$kernel"
