#include "bindings/bind.h"

namespace freetoken {

void bind_sim(nanobind::module_&) {}

}  // namespace freetoken
