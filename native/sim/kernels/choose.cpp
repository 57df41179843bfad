#include "sim/emulation.h"

#include "cuda/choose.cu"

SIM_KERNEL(choose_smallest);
