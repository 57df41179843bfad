// Which of a machine's memories a mapping lies in.
#pragma once

#include <cstddef>

namespace freetoken {

// Asks that pages of this mapping that are not there yet come from NUMA node `node` as long as it has room. False where
// the kernel has no say in that or no such node.
bool prefer_node(void* address, size_t size, int node);

}  // namespace freetoken
