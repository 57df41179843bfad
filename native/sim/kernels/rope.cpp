#include "sim/emulation.h"

#include "cuda/rope.cu"

SIM_KERNEL_FLAT(rope);
