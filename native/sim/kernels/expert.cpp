#include "sim/emulation.h"

#include "cuda/expert.cu"

#define REGISTER(codec) SIM_KERNEL(expert_##codec);
FOR_EACH_CODEC(REGISTER)
