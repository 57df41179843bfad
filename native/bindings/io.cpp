#include "bindings/bind.h"

namespace freetoken {

void bind_io(nanobind::module_&) {}

}  // namespace freetoken
