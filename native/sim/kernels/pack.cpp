#include "sim/emulation.h"

#include "cuda/pack.cu"

SIM_KERNEL(pack_q16);
SIM_KERNEL_FLAT(gather_f32);
