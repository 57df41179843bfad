// Which instruction set and which CPUs an object of the module computes with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exec/operation.h"

namespace freetoken {

// Of the instruction set called so; "": the fastest of this machine. Throws ProgramError for one that it cannot run.
const Kernels& kernels_named(const std::string& isa);
const Operations& operations_beside(const Kernels& kernels);

// CPUs of `threads` threads on this machine; no number: as many as suit it. Throws ProgramError for none.
std::vector<int> cpus_for(std::optional<int> threads);

}  // namespace freetoken
