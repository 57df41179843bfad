// Numbers at any address, whatever they were written as, for instructions that read them from memory by themselves.
#pragma once

#include <cstdint>

namespace freetoken {

using AnyInt = const __attribute__((may_alias, aligned(1))) int32_t;
using AnyFloat = const __attribute__((may_alias, aligned(1))) float;

}  // namespace freetoken
