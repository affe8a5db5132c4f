# What test.sh and test-mlx5.sh share: to be sourced. Each case prints `ok NAME`, `FAIL NAME` or `SKIP NAME: why`; $failed is 1 when one failed.
# Arguments of the script: only cases whose name contains one of the words.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${SOFTHCA_BUILD:-$here/../../build/softhca}
build=$(cd "$build" && pwd) || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SOFTHCA_SHM=$work/segment
words=("$@")
failed=0
# below the range from which the kernel takes ports for clients
port=$((20000 + $$ % 120 * 100))

wanted() {
	[ ${#words[@]} -eq 0 ] && return 0
	for w in "${words[@]}"; do [[ $1 == *"$w"* ]] && return 0; done
	return 1
}

# result NAME RC LOG...: one line, and the logs when it failed
result() {
	local name=$1 rc=$2
	shift 2
	if [ "$rc" -eq 0 ]; then
		echo "ok $name"
		return
	fi
	echo "FAIL $name"
	failed=1
	for log in "$@"; do sed "s|^|    ${log##*/}: |" "$log" | tail -15; done
}

have() { # have PROGRAM NAME
	command -v "$1" >/dev/null && return 0
	echo "SKIP $2: $1 is not installed"
	return 1
}

wait_port() { # a server listens on it, or 60 s have passed
	local hex
	hex=$(printf ':%04X ' "$1")
	for _ in $(seq 600); do
		awk '$4 == "0A"' /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "$hex" && return
		sleep 0.1
	done
}

# stat_sum KEY...: sum over the processes of a counter in the statistics
stat_sum() {
	local key=$1 block=${2:-}
	# the counter inside a block ("bytes":{...}), or at top level
	if [ -n "$block" ]; then
		sed -n "s/.*\"$block\":{\([^}]*\)}.*/\1/p" "$work/stats"
	else
		cat "$work/stats"
	fi | grep -o "\"$key\":[0-9]*" | awk -F: '{ s += $2 } END { print s + 0 }'
}

# pair NAME CHECK SERVER_ARGS -- extra client arguments
# Runs a program as server and client; CHECK is evaluated after both ended well.
pair() {
	local name=$1 check=$2 s c server
	shift 2
	wanted "$name" || return 0
	have "$1" "$name" || return 0
	# perftest ends with 1 where load keeps it from measuring the CPU's frequency, unless told not to care
	[[ $1 == ib_* ]] && set -- "$@" -F
	port=$((port + 1))
	rm -f "$work/stats"
	SOFTHCA_STATS=$work/stats timeout -k 5 60 "$@" -p $port >"$work/server" 2>&1 &
	server=$!
	wait_port $port
	SOFTHCA_STATS=$work/stats timeout -k 5 60 "$@" -p $port 127.0.0.1 >"$work/client" 2>&1
	c=$?
	wait $server
	s=$?
	if [ $s -eq 0 ] && [ $c -eq 0 ]; then
		eval "$check"
		c=$?
		[ $c -eq 0 ] || { echo "not true: $check" >>"$work/client"; cat "$work/stats" >>"$work/client"; }
	fi
	result "$name" $((s | c)) "$work/server" "$work/client"
}

# same NAME...: what was counted equals what was asked for
eq() {
	[ "$1" -eq "$2" ] && return 0
	echo "counted $1, not $2" >>"$work/client"
	return 1
}
requests() { stat_sum "$1" requests; }
bytes() { stat_sum "$1" bytes; }

ucx_ready() { # ucx_ready NAME
	have ucx_perftest "$1" || return 1
	[ -e /dev/infiniband/uverbs0 ] || [ -n "${LD_PRELOAD:-}" ] && return 0
	echo "SKIP $1: no /dev/infiniband/uverbs0 (setup.sh makes it)"
	return 1
}

# own PROGRAM N: one of our clients, whose cases are at least so many
own() {
	local all
	wanted "$1" || return 0
	timeout -k 5 300 "$build/$1" >"$work/client" 2>&1
	grep -E '^(ok|FAIL) ' "$work/client" | sed "s/ / $1_/"
	all=$(grep -c '^ok ' "$work/client")
	if grep -q '^FAIL' "$work/client" || [ "$all" -lt "$2" ]; then
		result "$1" 1 "$work/client"
	fi
}
