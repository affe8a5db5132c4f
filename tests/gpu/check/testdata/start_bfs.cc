// bfs.cu, with what starts its kernel.
#include "bfs.cc"

void run_kernel(void **a)
{
	bfs(*static_cast<search_state *>(a[0]), *static_cast<unsigned *>(a[1]), *static_cast<int *>(a[2]), *static_cast<int *>(a[3]), *static_cast<int *>(a[4]), *static_cast<int *>(a[5]));
}
