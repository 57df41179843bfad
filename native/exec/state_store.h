// The states of every recurrent operation, a slot a sequence. A slot's f32 values start at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/memory.h"
#include "exec/program.h"

namespace freetoken {

class StateStore {
public:
    // Without a slot at first.
    explicit StateStore(const std::vector<StateSpec>& states);

    // As KvCache's.
    void ask(int slots, std::vector<Resize>& asked);
    void resized(int slots) { slots_ = slots; }

    // The block of a slot: its state in each operation, in order.
    std::vector<std::span<uint8_t>> block(int slot) const;

    float* state(int index, int slot) const {
        const Store& store = stores_[static_cast<size_t>(index)];
        return store.memory.floats() + static_cast<size_t>(slot) * store.stride;
    }
    int values(int index) const { return stores_[static_cast<size_t>(index)].values; }
    int states() const { return static_cast<int>(stores_.size()); }
    int slots() const { return slots_; }
    // Bytes of a slot in all operations together.
    size_t slot_bytes() const;

private:
    struct Store {
        int values = 0;
        size_t stride = 0;  // values between slots
        Mapping memory;
    };

    std::vector<Store> stores_;
    int slots_ = 0;
};

}  // namespace freetoken
