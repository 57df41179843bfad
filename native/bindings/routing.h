// The routing of an executor, from and to arrays of Python.
#pragma once

#include <optional>

#include "bindings/arrays.h"
#include "exec/executor.h"

namespace freetoken {

using RoutingIds = nanobind::ndarray<const int32_t, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;
using NumpyRouting = NumpyArray<int32_t, 3>;

// What the last step chose, [layers][tokens][top_k]. Throws ProgramError if it was not recorded.
NumpyRouting recorded_routing(const Executor& executor);

// Has the next steps run these experts; none: those that the routers choose. Throws ProgramError.
void force_routing(Executor& executor, const std::optional<RoutingIds>& ids);

}  // namespace freetoken
