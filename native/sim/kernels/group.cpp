#include "sim/emulation.h"

#include "cuda/group.cu"

SIM_KERNEL(group_pairs);
