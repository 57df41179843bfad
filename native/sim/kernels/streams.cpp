#include "cuda/streams.cu"

#include "sim/emulation.h"

SIM_KERNEL_FLAT(stream_weights_rows);
SIM_KERNEL_FLAT(collapse_rows);
SIM_KERNEL_FLAT(expand_rows);
