#include "ops/ops.h"

#include "ops/tables.h"

namespace freetoken {

const Operations* operations_for(std::string_view name) {
    if (name == kScalarOperations.name) return &kScalarOperations;
#if defined(__x86_64__)
    if (name == kAvx2Operations.name) return &kAvx2Operations;
    if (name == kAvx512Operations.name) return &kAvx512Operations;
#endif
    return nullptr;
}

}  // namespace freetoken
