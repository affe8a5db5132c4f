/* The stand-in for HSA's runtime, as far as it maps memory for GPUs: for threads it is there already. */
#include "hip.h"

int hsa_init(void)
{
	return HSA_STATUS_SUCCESS;
}

int hsa_amd_memory_lock(void *p, size_t n, hsa_agent_t *agents, int count, void **device)
{
	if (!p || !n || !device || !agents != !count)
		return HSA_STATUS_ERROR_INVALID_ARGUMENT;
	*device = p;
	return HSA_STATUS_SUCCESS;
}

int hsa_amd_memory_lock_to_pool(void *p, size_t n, hsa_agent_t *agents, int count, hsa_amd_memory_pool_t pool, uint32_t flags, void **device)
{
	if (!pool.handle || flags)
		return HSA_STATUS_ERROR_INVALID_ARGUMENT;
	return hsa_amd_memory_lock(p, n, agents, count, device);
}

int hsa_amd_memory_unlock(void *p)
{
	return p ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_INVALID_ARGUMENT;
}
