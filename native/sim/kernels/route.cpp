#include "sim/emulation.h"

#include "cuda/route.cu"

SIM_KERNEL(route);
