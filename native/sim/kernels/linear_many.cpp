#include "sim/emulation.h"

#include "cuda/linear_many.cu"

// Threads of plain and scaled floats put nothing together.
#define REGISTER(codec) FREETOKEN_SIM_REGISTER(linear_many_##codec, ::freetoken::is_float(::freetoken::Codec::codec));
FOR_EACH_CODEC(REGISTER)
