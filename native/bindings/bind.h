// The parts of the module engine._native that have files of their own.
#pragma once

#include <nanobind/nanobind.h>

namespace freetoken {

void bind_sim(nanobind::module_& m);
void bind_hybrid(nanobind::module_& m);
void bind_io(nanobind::module_& m);

}  // namespace freetoken
