// The tables that a build may hold; kernels.cpp chooses among those the machine can run.
#pragma once

#include "kernels/kernels.h"

namespace freetoken {

extern const Kernels kScalarKernels;

}  // namespace freetoken
