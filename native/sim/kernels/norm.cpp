#include "sim/emulation.h"

#include "cuda/norm.cu"

SIM_KERNEL(rms_norm);
SIM_KERNEL(layer_norm);
SIM_KERNEL(l2_norm);
SIM_KERNEL(gated_norm);
