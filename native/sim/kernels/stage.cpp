#include "sim/emulation.h"

#include "cuda/stage.cu"

SIM_KERNEL_FLAT(stage);
