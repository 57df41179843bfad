#include "sim/emulation.h"

#include "cuda/streams.cu"

SIM_KERNEL_FLAT(stream_weights_rows);
SIM_KERNEL_FLAT(collapse_rows);
SIM_KERNEL_FLAT(expand_rows);
