#include "sim/emulation.h"

#include "cuda/norm.cu"

SIM_KERNEL(rms_norm);
