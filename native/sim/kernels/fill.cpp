#include "sim/emulation.h"

#include "cuda/fill.cu"

SIM_KERNEL_FLAT(fill);
