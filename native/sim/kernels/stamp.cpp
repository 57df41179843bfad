#include "sim/emulation.h"

#include "cuda/stamp.cu"

SIM_KERNEL_FLAT(stamp);
