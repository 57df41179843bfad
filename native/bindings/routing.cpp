#include "bindings/routing.h"

#include <algorithm>
#include <string>

namespace freetoken {

NumpyRouting recorded_routing(const Executor& executor) {
    const Routing& routing = executor.routing();
    if (routing.recorded_tokens() < 0) throw ProgramError("the last step was not recorded");
    auto [ids, next] = new_array<int32_t, 3>({static_cast<size_t>(routing.layers()),
                                              static_cast<size_t>(routing.recorded_tokens()),
                                              static_cast<size_t>(routing.top_k())});
    for (int layer = 0; layer < routing.layers(); ++layer) {
        const auto recorded = routing.recorded(layer);
        next = std::copy(recorded.begin(), recorded.end(), next);
    }
    return ids;
}

void force_routing(Executor& executor, const std::optional<RoutingIds>& ids) {
    Routing& routing = executor.routing();
    if (!ids) return routing.release();
    if (ids->shape(0) != static_cast<size_t>(routing.layers()) || ids->shape(2) != static_cast<size_t>(routing.top_k()))
        throw ProgramError("a routing must have " + std::to_string(routing.layers()) + " layers of " +
                           std::to_string(routing.top_k()) + " experts a token");
    routing.force({ids->data(), ids->size()}, static_cast<int>(ids->shape(1)));
}

}  // namespace freetoken
