#pragma once

#include <cstdlib>

// Queues that are rung nowhere.
inline struct {
	bool support_half_av_seg = !getenv("EMULATED_ROCE");
	struct {
		struct {
			struct {
				void *bf;
			} tx_wq;
		} rcs[64];
	} globalmem;
} nvshmemi_ibgda_device_state_d;
