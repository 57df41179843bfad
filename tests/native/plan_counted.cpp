// The kernel `plan` once more, compiled so that every basic block it executes calls __sanitizer_cov_trace_pc.
#include "sim/emulation.h"

#define plan plan_counted

#include "cuda/plan.cu"

SIM_KERNEL(plan_counted);
