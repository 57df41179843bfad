#include "sim/emulation.h"

#include "cuda/plan.cu"

SIM_KERNEL(plan);
