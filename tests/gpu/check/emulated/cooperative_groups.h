#pragma once

namespace cooperative_groups
{
struct grid_group {
	void sync() { emulated::sync_grid(); }
};
inline grid_group this_grid() { return {}; }
}
