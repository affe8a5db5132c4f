/* ucp-version.so: a preload that says of UCX that it is a version which nobody knows. */
#include <ucp/api/ucp.h>

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
	*major = 1;
	*minor = 99;
	*release = 7;
}
