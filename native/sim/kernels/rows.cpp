#include "sim/emulation.h"

#include "cuda/rows.cu"

SIM_KERNEL_FLAT(head_copy);
SIM_KERNEL_FLAT(glu_rows);
SIM_KERNEL_FLAT(sigmoid_gate);
SIM_KERNEL_FLAT(add_rows);
SIM_KERNEL_FLAT(select_rows);
