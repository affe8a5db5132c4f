#!/bin/bash
# Run in a root: builds the tests' clients and counters in /tests with the root's own compiler and libraries.
#   tests/roots/programs.sh REPOSITORY
set -eu
cd "$1"
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
targets=()
for t in ucp-client verbs-client peer-client burst-client dlv-client ofi-client ofi-contexts count-ucp.so count-verbs.so count-ofi.so; do targets+=("/tests/tests/$t"); done
# Whose tables the recorder does not know has no counter either.
ucx=$(sed -n 's/^#define UCT_VERNO_MINOR *//p' /usr/include/uct/api/version.h)
[ "${ucx:-0}" -lt 11 ] || targets+=(/tests/tests/count-uct.so)
make B=/tests GO=false CC=gcc CWARN=-std=gnu11 "${targets[@]}"
for mpi in openmpi mpich; do
	OMPI_CC=gcc mpicc.$mpi -std=gnu11 -O2 -o "/tests/tests/mpi-app-$mpi" tests/clients/mpi-app.c
done
