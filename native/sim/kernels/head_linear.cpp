#include "sim/emulation.h"

#include "cuda/head_linear.cu"

#define REGISTER(codec) SIM_KERNEL(head_linear_##codec);
FOR_EACH_CODEC(REGISTER)
