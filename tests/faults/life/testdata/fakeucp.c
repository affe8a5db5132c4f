/* A libucp.so.0 of one function that a signal handler may call, and that counts its calls. */
#include <ucp/api/ucp.h>

unsigned long fake_calls;

ucs_status_t ucp_put_nbi(ucp_ep_h ep, const void *buffer, size_t length, uint64_t remote, ucp_rkey_h rkey)
{
	(void)ep, (void)buffer, (void)length, (void)remote, (void)rkey;
	__atomic_fetch_add(&fake_calls, 1, __ATOMIC_RELAXED);
	return UCS_OK;
}
