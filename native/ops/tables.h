// The tables of operations that a build may hold.
#pragma once

#include "ops/ops.h"

namespace freetoken {

extern const Operations kScalarOperations;
#if defined(__x86_64__)
extern const Operations kAvx2Operations;
extern const Operations kAvx512Operations;
#endif

}  // namespace freetoken
