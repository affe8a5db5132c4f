#!/bin/bash
# Two hosts on one machine, as root: two namespaces of network, processes and mounts, each with a /dev/shm of its own, and a link between them.
#   two-hosts.sh FIRST SECOND   runs a shell command on each, the second once something listens on the first for TCP, and prints FIRST's output, then
#                               SECOND's. In both, $PEER is the other's address and SOFTHCA_TCP is set. The status is the greater of the two.
# Nothing is left behind; the machine's own network is not touched.
set -u
[ $# -eq 2 ] || { echo "usage: two-hosts.sh FIRST SECOND" >&2; exit 2; }
if [ "${TWO_HOSTS_INSIDE:-}" != "$$" ] && [ -z "${TWO_HOSTS_INSIDE:-}" ]; then
	export TWO_HOSTS_INSIDE=1
	exec unshare -mnpf --kill-child --mount-proc --propagation private "$0" "$@"
fi
export SOFTHCA_TCP=10.77.0.1,10.77.0.2
mount -t tmpfs none /dev/shm
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# the second host: a process that holds its namespaces
unshare -mnpf --kill-child --mount-proc --propagation private bash -c 'mount -t tmpfs none /dev/shm; ip link set lo up; touch "$1/up"; exec sleep 600' - "$out" &
holder=$!
for _ in $(seq 1200); do [ -e "$out/up" ] && break; sleep 0.05; done
second=$(ps -o pid= --ppid $holder | tr -d ' ')
ip link set lo up
ip link add first type veth peer name second netns "$second"
ip addr add 10.77.0.1/24 dev first
ip link set first up
nsenter -t "$second" -n sh -c 'ip addr add 10.77.0.2/24 dev second; ip link set second up'
PEER=10.77.0.2 bash -c "$1" >"$out/first" 2>&1 &
first=$!
for _ in $(seq 1200); do
	[ -z "$(ss -Hltn '( sport < 18700 or sport > 18800 )')" ] || break
	kill -0 $first 2>/dev/null || break
	sleep 0.05
done
PEER=10.77.0.1 nsenter -t "$second" -m -n -p --wd="$PWD" bash -c "$2" >"$out/second" 2>&1
b=$?
wait $first
a=$?
cat "$out/first" "$out/second"
kill "$second"
exit $((a > b ? a : b))
