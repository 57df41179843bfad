#include "exec/state_store.h"

#include <string>
#include <utility>

namespace freetoken {
namespace {

constexpr size_t kLineValues = 64 / sizeof(float);

}  // namespace

StateStore::StateStore(const std::vector<StateSpec>& states) {
    for (const StateSpec& state : states) {
        if (state.values <= 0) throw ProgramError("a state cannot have " + std::to_string(state.values) + " values");
        Store store;
        store.values = state.values;
        store.stride = (static_cast<size_t>(state.values) + kLineValues - 1) / kLineValues * kLineValues;
        store.memory = Mapping(0, true);
        stores_.push_back(std::move(store));
    }
}

void StateStore::ask(int slots, std::vector<Resize>& asked) {
    for (Store& store : stores_) asked.push_back({&store.memory, array_bytes(slots, store.stride * sizeof(float))});
}

std::vector<std::span<uint8_t>> StateStore::block(int slot) const {
    std::vector<std::span<uint8_t>> parts;
    for (int i = 0; i < states(); ++i)
        parts.emplace_back(reinterpret_cast<uint8_t*>(state(i, slot)),
                           stores_[static_cast<size_t>(i)].stride * sizeof(float));
    return parts;
}

size_t StateStore::slot_bytes() const {
    size_t bytes = 0;
    for (const Store& store : stores_) bytes += store.stride * sizeof(float);
    return bytes;
}

}  // namespace freetoken
