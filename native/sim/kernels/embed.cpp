#include "sim/emulation.h"

#include "cuda/embed.cu"

#define REGISTER(codec) SIM_KERNEL_FLAT(embed_##codec);
FOR_EACH_CODEC(REGISTER)
