// The tables that a build may hold; kernels.cpp chooses among those the machine can run.
#pragma once

#include "kernels/kernels.h"

namespace freetoken {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace freetoken
