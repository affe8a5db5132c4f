#!/bin/bash
# Runs a guest script in one virtual machine, or in two that are connected by a wire, with soft-RoCE as their RDMA device:
#   tests/vm/run.sh one|two GUESTSCRIPT
# The machines are emulated (no KVM is used), mount the repository at its own path, and write to OUT, a folder that is shared by both.
# The script's line "# rig: tests=N limit=SECONDS" says how many tests pass in all, and how long it may take; root=NAME in it, that the machine's
# programs and libraries are those of a root of tests/roots; else they are Debian 12's; device=NAME, that it has that device of QEMU's as well.
# Prints "ok NAME", "FAIL NAME: why" and "SKIP NAME: why" lines, as parts of the test suite do; the exit status agrees.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$(realpath -m "${B:-build}")
mode=${1:-} script=${2:-}
case $mode in one | two) ;; *) echo "usage: tests/vm/run.sh one|two GUESTSCRIPT" >&2; exit 2 ;; esac
script=$(realpath "$script") || exit 2
name=$(basename "$script" .sh)
declared=$(sed -n 's/^# rig: //p' "$script")
tests=$(sed -n 's/.*tests=\([0-9]*\).*/\1/p' <<<"$declared")
limit=$(sed -n 's/.*limit=\([0-9]*\).*/\1/p' <<<"$declared")
root=$(sed -n 's/.*root=\([a-z0-9]*\).*/\1/p' <<<"$declared")
device=$(sed -n 's/.*device=\([a-z0-9]*\).*/\1/p' <<<"$declared")
[ -n "$tests" ] && [ -n "$limit" ] || { echo "$script: no line \"# rig: tests=N limit=SECONDS\"" >&2; exit 2; }

OUT=$B/vm/out/$name
rm -rf "$OUT"
command -v qemu-system-x86_64 >/dev/null || { echo "SKIP $name: qemu-system-x86_64 is not installed"; exit 0; }
if ! kernel=$(tests/vm/build.sh) || ! root=$(${root:+tests/roots/build.sh "$root"}); then
	echo "SKIP $name: the kernel or the root of the guests cannot be made here, see the log"
	exit 0
fi
mkdir -p "$OUT"

# start HOST CORES QEMU-ARGS...: one machine to its end. Its console is OUT/HOST.console, its exit status is returned.
# A busy host is late with the timer by which the kernel would check its interrupts: it does not look. KVM is never used: where /dev/kvm is itself emulated, guests hang under it.
start() {
	local host=$1 cores=$2
	shift 2
	timeout -k 5 "$limit" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp "$cores" -m 512 \
		-nodefaults -nographic -no-reboot -serial stdio -monitor none -kernel "$kernel/vmlinux" -initrd "$kernel/initramfs.cpio" \
		-append "console=ttyS0 quiet no_timer_check panic=-1 oops=panic random.trust_cpu=on mitigations=off rig.host=$host rig.repo=$PWD rig.build=$B rig.out=$OUT rig.script=$script" \
		-device isa-debug-exit,iobase=0xf4,iosize=4 -device virtio-rng-pci ${device:+-device "$device,romfile="} \
		-virtfs local,path="${root:-$B/vm/root}",mount_tag=root,security_model=none,readonly=on,multidevs=remap \
		-virtfs local,path="$PWD",mount_tag=repo,security_model=none,multidevs=remap "$@" \
		</dev/null >"$OUT/$host.console" 2>&1
}
wire() { echo -netdev "stream,id=wire,server=$1,addr.type=unix,addr.path=$sock" \
	-device "virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0$2,host_mtu=4500,romfile="; }

bad=0
report() { # HOST STATUS
	local line
	# The console ends lines with a carriage return, and firmware writes control codes.
	while read -r line; do
		line=${line#*@@ TEST }
		case $line in
		*" ok"*) echo "ok ${line%% ok*}" ;;
		*) echo "FAIL ${line/ FAIL/}"; bad=1 ;;
		esac
	done < <(tr -d '\r' <"$OUT/$1.console" | grep -a '^@@ TEST ')
	if [ "$2" != 1 ]; then
		echo "FAIL $name-$1: qemu exit status $2, 1 is success (124: the limit of $limit s)"
		bad=1
		tail -n 40 "$OUT/$1.console" | tr -d '\r' | sed 's/^/    /' >&2
	fi
}

if [ "$mode" = one ]; then
	hosts=rig
	start rig 2
	report rig $?
else
	hosts="vma vmb"
	# A socket's path is short; the build folder's may not be.
	sock_dir=$(mktemp -d)
	trap 'rm -rf "$sock_dir"' EXIT
	sock=$sock_dir/wire
	start vma 1 $(wire on 1) &
	a=$!
	for _ in $(seq 600); do [ -S "$sock" ] && break; sleep 0.1; done
	start vmb 1 $(wire off 2) &
	b=$!
	wait $a
	report vma $?
	wait $b
	report vmb $?
fi
passed=0
for h in $hosts; do passed=$((passed + $(grep -acE '^@@ TEST .* ok' "$OUT/$h.console"))); done
if [ "$passed" != "$tests" ]; then
	echo "FAIL $name-complete: $passed tests passed, the script declares $tests"
	bad=1
fi
exit $bad
