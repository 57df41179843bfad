#include "sim/emulation.h"

#include "cuda/linear.cu"

#define REGISTER(codec) SIM_KERNEL(linear_##codec);
FOR_EACH_CODEC(REGISTER)
