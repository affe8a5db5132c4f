#!/bin/bash
# The counting preloads, which other parts hold the recorder against, agree with programs that know what they sent.
# runner: quick limit=3m
. "$(dirname "$0")/../lib.sh"
export UCX_NET_DEVICES=lo

# Each process of ucp-client counts as many as its counter saw, request for request.
for tls in tcp,self posix,sysv,self; do
	name=ucp-${tls%%,*}
	for seed in 1 2; do
		if ! UCX_TLS=$tls SENT_OUT=$TMP/$name-sent COUNT_OUT=$TMP/$name LD_PRELOAD=$B/tests/count-ucp.so \
			timeout 60 "$B/tests/ucp-client" -s $seed >&2; then
			fail "$name-$seed" "ucp-client failed"
			continue
		fi
		agree=0
		for sent in "$TMP/$name-sent".*; do
			cmp "$sent" "$TMP/$name.ucp.${sent##*.}" >&2 && agree=$((agree + 1))
		done
		equal "$name-$seed" "$agree processes agree" "$((2 * seed)) processes agree"
	done
done

# Two counters in one process neither disturb each other nor count twice.
UCX_TLS=self COUNT_OUT=$TMP/both LD_PRELOAD=$B/tests/count-verbs.so:$B/tests/count-ucp.so \
	timeout 120 "$B/tests/burst-client" -l ucp -f "$TMP/published" -n 20000 >&2
equal stacked "$("$B/tests/runner" counts "$TMP"/both.*)" "put 20000 1280000"

# A program nobody here wrote. How many puts beyond -n it makes depends on its warm-up's timing (5,521 and 5,264 were seen).
perftest() { UCX_TLS=tcp,self COUNT_OUT=$TMP/perftest-$1 LD_PRELOAD=$B/tests/count-ucp.so timeout 60 \
	ucx_perftest -t ucp_put_bw -n 5000 -w 500 -s 4096 -p 13400 "${@:2}" >&2; }
perftest server &
listening 13400
perftest client 127.0.0.1
wait
read -r _ puts bytes < <("$B/tests/runner" counts "$TMP"/perftest-client.* | grep put)
check ucx_perftest test "${puts:-0}" -gt 5000 -a "${puts:-0}" -lt 6000 -a "${bytes:-0}" = $((${puts:-0} * 4096))

# Open MPI: what all ranks send is received, and it is more than the program's own point-to-point messages.
run_mpi 4 -x COUNT_OUT="$TMP/mpi" -x SENT_OUT="$TMP/mpi-sent" -x LD_PRELOAD="$B/tests/count-ucp.so" "$B/tests/mpi-app" -n 5 >&2
read -r _ sends bytes < <("$B/tests/runner" counts "$TMP"/mpi.ucp.* | grep tag_send)
read -r _ recvs _ < <("$B/tests/runner" counts "$TMP"/mpi.ucp.* | grep tag_recv)
equal mpi-sends-are-received "${sends:-none}" "${recvs:-no receive}"
read -r _ own own_bytes < <("$B/tests/runner" counts "$TMP"/mpi-sent.* | grep mpi_send)
check mpi-own-messages-are-among-them test "${sends:-0}" -gt "${own:-0}" -a "${bytes:-0}" -gt "${own_bytes:-0}" -a "${own:-0}" = 120
finish
