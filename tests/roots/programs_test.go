//go:build roots

package roots

// pair is a shell script: server and client of a program that is both, as ucx_perftest and perftest are.
const pair = `"$@" -p PORT & server=$!
at=":$(printf %04X PORT) [0-9A-F]*:0000 0A"
until grep -qs "$at" /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 99; sleep 0.05; done
"$@" -p PORT 127.0.0.1; client=$?
wait $server; server=$?
exit $((client > server ? client : server))`

func inPair(argv ...string) []string { return append([]string{"bash", "-c", pair, "pair"}, argv...) }

func openMPI(ranks string, argv ...string) []string {
	return append([]string{"mpirun.openmpi", "--oversubscribe", "-np", ranks, "-x", "COUNT_OUT", "-x", "SENT_OUT", "-x", "LD_PRELOAD=COUNTERS"}, argv...)
}

// UCX 1.10 offers connection management by rdmacm where there is no such device, and then fails.
var (
	tcp = []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0,lo", "UCX_SOCKADDR_TLS_PRIORITY=tcp", "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_LOG_LEVEL=error"}
	shm = []string{"UCX_TLS=posix,sysv,self", "UCX_SOCKADDR_TLS_PRIORITY=tcp"}
	rcv = []string{"UCX_TLS=rc_v,self", "UCX_SOCKADDR_TLS_PRIORITY=tcp"}
)

// The table. A row says what of it is known beside the counter: of a program nobody here wrote, what its options ask for.
var programs = []program{
	{name: "ucp-client/shm", providers: "ucx", env: shm, argv: []string{"/tests/tests/ucp-client", "-n", "40"}, counted: []string{"ucp"}, processes: 2},
	{name: "ucp-client/tcp", providers: "ucx", env: tcp, argv: []string{"/tests/tests/ucp-client", "-n", "40", "-s", "7"}, counted: []string{"ucp"}, processes: 2},
	{name: "ucx_perftest-tag_lat", roots: []string{"debian11"}, providers: "ucx", env: tcp, counted: []string{"ucp"}, processes: 2,
		argv: inPair("ucx_perftest", "-t", "tag_lat", "-n", "300", "-w", "30", "-s", "8")},
	{name: "ucx_perftest-put_bw", roots: []string{"debian11"}, providers: "ucx", env: tcp, counted: []string{"ucp"}, processes: 2,
		argv: inPair("ucx_perftest", "-t", "ucp_put_bw", "-n", "300", "-w", "30", "-s", "64")},
	// Debian 13 builds ucx_perftest as an MPI program.
	{name: "ucx_perftest-tag_lat", roots: []string{"debian13"}, providers: "ucx", env: tcp, counted: []string{"ucp"}, processes: 2,
		argv: openMPI("2", "--mca", "pml", "ob1", "ucx_perftest", "-t", "tag_lat", "-n", "300", "-w", "30", "-s", "8")},
	{name: "ucx_perftest-put_bw", roots: []string{"debian13"}, providers: "ucx", env: tcp, counted: []string{"ucp"}, processes: 2,
		argv: openMPI("2", "--mca", "pml", "ob1", "ucx_perftest", "-t", "ucp_put_bw", "-n", "300", "-w", "30", "-s", "64")},
	{name: "openmpi-ucx", providers: "ucx", env: shm, counted: []string{"ucp"}, processes: 4,
		argv: openMPI("4", "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "osc", "ucx", "/tests/tests/mpi-app-openmpi", "-n", "5")},
	{name: "ofi-client/tcp", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-client", "-s", "7"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-client/shm", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-client", "-p", "shm", "-s", "8"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-client/msg", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-client", "-e", "msg", "-s", "9"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-contexts/scalable", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-contexts", "scalable"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-contexts/shared", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-contexts", "shared"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-contexts/alias", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-contexts", "alias"}, counted: []string{"ofi"}, processes: 2},
	{name: "ofi-contexts/connections", roots: []string{"debian13"}, providers: "libfabric", argv: []string{"/tests/tests/ofi-contexts", "connections"}, counted: []string{"ofi"}, processes: 2},
	{name: "openmpi-ofi", roots: []string{"debian13"}, providers: "libfabric", counted: []string{"ofi"}, processes: 4,
		argv: openMPI("4", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp", "/tests/tests/mpi-app-openmpi", "-n", "5")},
	// MPICH of Debian 13 is built over UCX; that of Debian 11 over its own shared memory and sockets, which no RDMA library carries.
	{name: "mpich-ucx", roots: []string{"debian13"}, providers: "ucx", env: shm, counted: []string{"ucp"}, processes: 4,
		argv: []string{"mpiexec.mpich", "-n", "4", "/tests/tests/mpi-app-mpich", "-n", "5"}},
	{name: "mpich-sockets", roots: []string{"debian11"}, providers: "ucx", env: shm, counted: []string{"ucp"},
		argv: []string{"mpiexec.mpich", "-n", "4", "/tests/tests/mpi-app-mpich", "-n", "5"}},
}
