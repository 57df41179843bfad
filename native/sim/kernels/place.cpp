#include "sim/emulation.h"

#include "cuda/place.cu"

SIM_KERNEL_FLAT(place_pairs);
