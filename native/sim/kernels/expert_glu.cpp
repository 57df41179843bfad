#include "sim/emulation.h"

#include "cuda/expert_glu.cu"

SIM_KERNEL_FLAT(expert_glu);
SIM_KERNEL_FLAT(expert_bias);
