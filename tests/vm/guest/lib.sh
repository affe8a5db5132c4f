# shellcheck shell=bash
# Sourced by guest scripts: . "$(dirname "$0")/lib.sh". Sets the RDMA device up and gives the helpers below. For them:
#   B     a copy of the build folder: what is needed of it, in memory     OUT   a folder of the host that stays after the run, shared by two machines
#   DEV   the RDMA device, rxe0                 GID   index of its IPv4 GID; UCX needs the link-local one, 0
#   ME, PEER   addresses of this machine and the other (of one machine: itself)
#   ROLE  one, or a and b of two machines
# /tmp is memory and supports shared writable mappings; the repository and OUT are mounted by 9p and do not.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# The 9p mount caches nothing: each start of a program would read it anew.
B=/tmp/build OUT=$RIG_out DEV=rxe0 GID=1
export B OUT DEV GID
mkdir $B
cp -r "$RIG_build"/{bin,lib} $B/
if [ -d /tests/tests ]; then # a root of tests/roots: clients and counters built in it
	cp -r /tests/tests $B/
	ln -s mpi-app-openmpi $B/tests/mpi-app
	ln -s mpirun.openmpi /usr/bin/mpirun
else
	cp -r "$RIG_build/tests" $B/
fi
bad=0

# test_ok NAME, test_fail NAME WHY: the markers that the host counts.
test_ok() { echo "@@ TEST $1 ok $(cut -d' ' -f1 /proc/uptime)"; }
test_fail() { echo "@@ TEST $1 FAIL: $2"; bad=1; }
# check NAME LIMIT COMMAND...: ok when COMMAND succeeds within LIMIT seconds. Its output is shown when it does not.
check() {
	local name=$1 limit=$2 rc=0
	shift 2
	timeout -k 2 "$limit" "$@" >"/tmp/out.$name" 2>&1 || rc=$?
	[ $rc = 0 ] && test_ok "$name" && return
	tail -n 15 "/tmp/out.$name"
	test_fail "$name" "exit status $rc of: $*"
}
finish() { exit $bad; }

# wait_until SECONDS COMMAND...: until COMMAND succeeds.
wait_until() {
	local i n=$(($1 * 10))
	shift
	for ((i = 0; i < n; i++)); do
		"$@" && return
		sleep 0.1
	done
	return 1
}
port_listens() { [ -n "$(ss -Hltn "sport = :$1")" ] || rdma resource show cm_id | grep -q "LISTEN.*:$1\b"; }

# meet NAME: both machines wait here for each other, 120 s at most. Nothing to do on one.
meet() {
	[ "$ROLE" = one ] && return
	local other=a
	[ "$ROLE" = a ] && other=b
	: >"$OUT/meet.$1.$ROLE"
	wait_until 120 test -e "$OUT/meet.$1.$other" || { echo "the other machine did not come to $1"; exit 1; }
}

# serve_and_call NAME PORT LIMIT SERVER CLIENT: starts the command line SERVER, waits until it listens on PORT, runs CLIENT; both must
# succeed within LIMIT seconds. On two machines a serves and b calls. Their outputs are OUT/NAME/server and OUT/NAME/client.
# Returns whether it went well; says what did not.
serve_and_call() {
	local name=$1 port=$2 limit=$3 server=$4 client=$5 rc=0 pid=
	mkdir -p "$OUT/$name"
	if [ "$ROLE" != b ]; then
		timeout -k 2 "$limit" bash -c "$server" >"$OUT/$name/server" 2>&1 &
		pid=$!
		wait_until 30 port_listens "$port" || echo "$name: nothing listens on port $port"
	fi
	meet "$name"
	if [ "$ROLE" != a ]; then
		timeout -k 2 "$limit" bash -c "$client" >"$OUT/$name/client" 2>&1 || rc=$?
		[ $rc = 0 ] || { echo "$name: the client's exit status is $rc"; cat "$OUT/$name/client"; }
		[ $rc = 0 ] || [ -z "$pid" ] || kill "$pid" 2>/dev/null
	fi
	if [ -n "$pid" ]; then
		wait "$pid" || { rc=$?; echo "$name: the server's exit status is $rc"; cat "$OUT/$name/server"; }
	fi
	meet "$name.end"
	return $rc
}

# What a run leaves in OUT/NAME: run/, the run directory; count.HOST.LAYER.PID, what the counters beside the recorder saw; sent.HOST.PID,
# what the tests' own clients say of themselves; log.HOST; qps.HOST, where watch_qps was told to look.
#
# preloads LAYER...: the value of LD_PRELOAD for the tests' counters of these layers, ucp, uct, verbs and ofi.
preloads() { local l; for l in "$@"; do printf '%s' "$B/tests/count-$l.so:"; done; }
# providers LAYER...: those that record these layers, in a list with commas. uct comes with ucp.
providers() { sed 's/ucp/ucx/; s/ uct//; s/verbs/ibverbs/; s/ofi/libfabric/; s/ /,/g' <<<"$*"; }
# launch NAME MODE LAYERS ARGS... -- COMMAND...: records COMMAND, with a counter for each layer beside the recorder. Merged on the host only,
# but with MERGE empty here as well.
launch() {
	local name=$1 mode=$2 layers=$3
	shift 3
	mkdir -p "$OUT/$name"
	SENT_OUT=$OUT/$name/sent.$RIG_host COUNT_OUT=$OUT/$name/count.$RIG_host LD_PRELOAD=$(preloads $layers) timeout -k 2 150 "$B/bin/sigmatrace" launch ${MERGE---no-merge} \
		-p "$mode" --providers "$(providers $layers)" -o "$OUT/$name/run" "$@"
}
# ran NAME COMMAND...: the test run-NAME is that COMMAND succeeds. Its output goes to OUT/NAME/log.HOST.
ran() {
	local name=$1 rc=0
	shift
	mkdir -p "$OUT/$name"
	"$@" >"$OUT/$name/log.$RIG_host" 2>&1 || rc=$?
	if [ -n "$watcher" ]; then
		: >"$see.end"
		wait "$watcher"
		watcher=
	fi
	[ $rc = 0 ] && test_ok "run-$name" && return
	cat "$OUT/$name/log.$RIG_host"
	test_fail "run-$name" "exit status $rc of: $*"
}
# pair NAME MODE PORT LAYERS SERVER CLIENT: both in one run, the captures written to memory and brought to the run by the launcher.
pair() { ran "$1" launch "$1" "$2" "$4" --set record.scratch=/tmp/scratch -- bash -c 'serve_and_call "$@"' pair "$1" "$3" 100 "$5" "$6"; }
# alone NAME MODE LAYERS COMMAND...
alone() { ran "$1" launch "$1" "$2" "$3" -- "${@:4}"; }
mkdir /tmp/scratch

# watch_qps NAME N: until the kernel knows N queue pairs of programs that are connected, all at once, in the background: OUT/NAME/qps.HOST
# is then what it says of them, one a line: QPN REMOTE-QPN STATE PID COMMAND. A queue pair that only
# receives stays RTR. The watch goes before programs, which poll without a pause, and ends
# with the next run.
watch_qps() {
	local to=$OUT/$1/qps.$RIG_host n=$2
	see=/tmp/qps.$1
	mkdir -p "$OUT/$1"
	(
		nice -n -20 bash -c 'until [ -e "$1.end" ]; do
			rdma resource show qp link "$DEV" >"$1"
			[ "$(grep -c "rqpn [1-9].* state RT[RS]" "$1")" -lt "$2" ] || break
			sleep 0.05
		done' watch "$see" "$n"
		sed -n 's/.* lqpn \([0-9]*\) rqpn \([0-9]*\).* state \([A-Z]*\).* pid \([0-9]*\) comm \(.*\)/\1 \2 \3 \4 \5/p' "$see" | tr -d '[]' >"$to"
	) &
	watcher=$!
}
see='' watcher=''

# mpi_command: sets the array mpi to the beginning of a command line for Open MPI over UCX over soft-RoCE, two ranks.
mpi_command() {
	mpi=(mpirun -np 2 --allow-run-as-root --oversubscribe --mca pml ucx --mca btl ^openib
		--mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS -x UCX_NET_DEVICES -x UCX_IB_GID_INDEX -x COUNT_OUT -x SENT_OUT)
}
# mpi_over_ofi: the same over libfabric.
mpi_over_ofi() {
	mpi_command
	mpi=("${mpi[@]/%ucx/cm}" --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -x FI_UNIVERSE_SIZE)
}
# UCX's UD, which also sets RC up, gets nothing through soft-RoCE with an IPv4 GID.
export UCX_NET_DEVICES=$DEV:1 UCX_IB_GID_INDEX=0 UCX_TLS=rc_v
# libfabric's RDM over verbs asks for completion queues larger than soft-RoCE has, unless the job is said to be small.
export FI_UNIVERSE_SIZE=16

ip link set lo up
case $RIG_host in
rig)
	ROLE=one ME=10.9.0.1 PEER=127.0.0.1
	ip link add d0 type veth peer name d1
	ip link set d1 mtu 4500 up
	net=d0
	;;
*)
	if [ "$RIG_host" = vma ]; then ROLE=a ME=10.9.0.1 PEER=10.9.0.2; else ROLE=b ME=10.9.0.2 PEER=10.9.0.1; fi
	for d in /sys/class/net/*/device/driver; do
		[ "$(basename "$(readlink "$d")")" != virtio_net ] || net=$(basename "${d%/device/driver}")
	done
	;;
esac
export ROLE ME PEER
ip addr add $ME/24 dev "$net"
ip link set "$net" mtu 4500 up
rdma link add $DEV type rxe netdev "$net" || { echo "cannot make $DEV"; exit 1; }
wait_until 10 grep -q ffff:0a09 /sys/class/infiniband/$DEV/ports/1/gids/$GID || { echo "$DEV has no IPv4 GID"; exit 1; }
if [ $ROLE != one ]; then
	wait_until 60 ping -c1 -W1 $PEER >/dev/null || { echo "$PEER does not answer"; exit 1; }
fi
export -f wait_until port_listens meet serve_and_call

# libfabric: verbs itself and the layer above it, by programs of others and by the tests' own, in which every operation has every form.
libfabric() {
	local args
	args="-p verbs -e msg -I 100 -S 64"
	pair fi_pingpong-msg full 47592 "verbs ofi" "fi_pingpong $args" "fi_pingpong $args $ME"
	args="-p 'verbs;ofi_rxm' -e rdm -I 100 -S 64"
	pair fi_pingpong-rxm full 47592 "verbs ofi" "fi_pingpong $args" "fi_pingpong $args $ME"
	export OFI_NODE=$ME
	alone ofi-msg full "verbs ofi" "$B/tests/ofi-client" -p verbs -e msg -s 3
	alone ofi-rxm full "verbs ofi" "$B/tests/ofi-client" -p 'verbs;ofi_rxm' -s 4
	mpi_over_ofi
	ran mpi-ofi launch mpi-ofi full "verbs ofi" -- "${mpi[@]}" "$B/tests/mpi-app" -n 2
}
