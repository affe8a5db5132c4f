#pragma once

#include "standin.h"

struct ctx {
	int device;
};
