#!/bin/bash
# Two machines with clocks that are apart by a known time: what `sigmatrace calibrate` says of them by ptp4l, chronyd and none, checked on the
# host against the two machines' own question and answer. b has a hardware clock that stands still.
# rig: tests=8 limit=900 device=e1000e
. "$(dirname "$0")/lib.sh" || exit 1

# record NAME SAYS: the test record-NAME. In OUT/NAME.record what calibrate says, and in OUT/NAME.truth how far this clock is ahead of a's,
# between what and what, before and after. Both are made anew, a few times at most, until the record says SAYS: a daemon has less than a second
# to answer, and on a busy host a machine stands still for longer.
record() {
	local name=$1 says=$2 rc i
	for i in 1 2 3 4 5 6 7 8; do
		rc=0
		"$B/tests/clock-client" ask $PEER >"$OUT/$name.truth" || rc=$?
		timeout 20 "$B/bin/sigmatrace" calibrate --json --limit 4s >"$OUT/$name.record" || rc=$?
		"$B/tests/clock-client" ask $PEER >>"$OUT/$name.truth" || rc=$?
		[ $rc != 0 ] || ! grep -q "$says" "$OUT/$name.record" || break
		sleep 1
	done
	[ $rc = 0 ] && test_ok "record-$name" || test_fail "record-$name" "exit status $rc"
}
says() { pmc -u -b 0 "GET $1" | grep -q "$2"; }
# in_background NAME COMMAND...: until stop NAME.
in_background() {
	local name=$1
	shift
	"$@" >"$OUT/$name.log.$RIG_host" 2>&1 &
	pids[$name]=$!
}
stop() { kill "${pids[$1]}" && wait "${pids[$1]}"; }
declare -A pids
# while_b_works NAME: meets b, which has more to do before than a meeting waits for.
while_b_works() {
	wait_until 600 test -e "$OUT/meet.$1.b"
	meet "$1"
}
chrony() { printf '%s\n' "$@" "pidfile /tmp/chronyd.pid" "bindcmdaddress /" >/tmp/chrony.conf; }

if [ $ROLE = a ]; then
	in_background peer "$B/tests/clock-client" serve
	in_background ptp ptp4l -S -i "$net" -m -l 6 --priority1 10 --logSyncInterval -2 --logAnnounceInterval 0
	if wait_until 60 says PORT_DATA_SET "portState *MASTER"; then test_ok master; else test_fail master "ptp4l is not the master"; fi
	master_record() { "$B/bin/sigmatrace" calibrate --json >"$OUT/master.record" && grep -q '"source":"ptp"' "$OUT/master.record"; }
	wait_until 5 master_record || test_fail master "calibrate does not say so"
	meet ptp.ready
	date +%s >"$OUT/clock" # machines that start on a busy host may be minutes apart
	meet ptp
	while_b_works ptp.end
	stop ptp
	chrony "local stratum 1" "allow all"
	in_background chrony chronyd -x -d -u root -f /tmp/chrony.conf
	meet chrony
	while_b_works chrony.end
	stop chrony
	stop peer
	finish
fi

"$B/bin/sigmatrace-clockd" --interval 2s --limit 1s 2>"$OUT/clockd.warnings" &
clockd=$!
if wait_until 20 test -s /run/sigmatrace/clock/records; then test_ok published; else test_fail published "clockd publishes nothing"; fi
meet ptp.ready
meet ptp
date -s "@$(($(cat "$OUT/clock") + 7))" >/dev/null
record none '"source":"system"'
# Both follow on where the master stands still for a while.
in_background free ptp4l -S -s -i "$net" -m -l 6 --free_running 1 --announceReceiptTimeout 60
wait_until 60 says TIME_STATUS_NP "gmPresent *true" && wait_until 60 says CURRENT_DATA_SET "meanPathDelay *[1-9]"
record free '"servo":"not locked".*"error_ns":[1-9]'
pmc -u -b 0 'GET PORT_DATA_SET' 'GET PARENT_DATA_SET' >"$OUT/free.pmc"
stop free
# Delays are milliseconds here, and vary: a mild servo, which does not take that for jumps.
in_background steers ptp4l -S -s -i "$net" -m -l 6 --announceReceiptTimeout 60 --sanity_freq_limit 0 --pi_proportional_const 0.05 --pi_integral_const 0.001
if wait_until 120 says PORT_DATA_SET "portState *SLAVE"; then test_ok slave; else test_fail slave "ptp4l's servo does not lock"; fi
sleep 5
record locked '"servo":"locked".*"error_ns":[1-9]'
pmc -u -b 0 'GET PORT_DATA_SET' 'GET PARENT_DATA_SET' >"$OUT/locked.pmc"
stop steers
meet ptp.end
meet chrony
date -s "+3 seconds" >/dev/null
chrony "server $PEER iburst minpoll 0 maxpoll 0" "makestep 0.1 3"
in_background follows chronyd -d -u root -f /tmp/chrony.conf
# Its dispersion begins with seconds.
followed() { "$B/bin/sigmatrace" calibrate --json | grep -qE '"leap":"normal",.*"root_dispersion_ns":[0-9]{1,8},'; }
if wait_until 120 followed; then test_ok followed; else test_fail followed "chronyd follows nobody"; fi
record chrony '"source":"chrony".*"error_ns":[1-9]'
stop follows
kill $clockd && wait $clockd
cp /run/sigmatrace/clock/records "$OUT/published"
meet chrony.end
finish
