#include "bindings/bind.h"

namespace freetoken {

void bind_hybrid(nanobind::module_&) {}

}  // namespace freetoken
