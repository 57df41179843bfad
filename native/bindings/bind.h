// The parts of the module engine._native.
#pragma once

#include <nanobind/nanobind.h>

namespace freetoken {

void bind_machine(nanobind::module_& m);
void bind_codecs(nanobind::module_& m);
void bind_executor(nanobind::module_& m);
void bind_probe(nanobind::module_& m);
void bind_sim(nanobind::module_& m);
void bind_hybrid(nanobind::module_& m);
void bind_io(nanobind::module_& m);

}  // namespace freetoken
