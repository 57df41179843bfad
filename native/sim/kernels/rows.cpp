#include "sim/emulation.h"

#include "cuda/rows.cu"

SIM_KERNEL_FLAT(head_copy);
SIM_KERNEL_FLAT(glu_rows);
SIM_KERNEL_FLAT(sigmoid_gate);
SIM_KERNEL_FLAT(gate_rows);
SIM_KERNEL_FLAT(relu2_rows);
SIM_KERNEL_FLAT(bound_rows);
SIM_KERNEL_FLAT(decay_rows);
SIM_KERNEL_FLAT(add_rows);
SIM_KERNEL_FLAT(scale_rows);
SIM_KERNEL_FLAT(select_rows);
