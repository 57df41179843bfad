#include "bindings/routing.h"

#include <memory>

namespace nb = nanobind;

namespace freetoken {

NumpyRouting recorded_routing(const Executor& executor) {
    const Routing& routing = executor.routing();
    if (routing.recorded_tokens() < 0) throw ProgramError("the last step was not recorded");
    const auto layers = static_cast<size_t>(routing.layers());
    const auto tokens = static_cast<size_t>(routing.recorded_tokens());
    const auto top_k = static_cast<size_t>(routing.top_k());
    auto ids = std::make_unique_for_overwrite<int32_t[]>(layers * tokens * top_k);
    int32_t* next = ids.get();
    for (int layer = 0; layer < routing.layers(); ++layer) {
        const auto recorded = routing.recorded(layer);
        next = std::copy(recorded.begin(), recorded.end(), next);
    }
    int32_t* data = ids.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
    return NumpyRouting(data, {layers, tokens, top_k}, owner);
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
