#include "sim/emulation.h"

#include "cuda/merge.cu"

SIM_KERNEL_FLAT(merge);
