// Pairs of a token and an expert, as kernels of experts see them: pair p is place p mod top_k of token p / top_k, and
// `target` says where its expert is: 2 slot for one that was in that slot, 2 slot + 1 for one that is filled into it in
// this step, -1 for the CPU, -2 for a row beyond the live ones, -3 where the token's own
// input is the output.
#pragma once

#include "cuda/device.h"

namespace freetoken {

inline constexpr int kAnyTarget = 2;  // `which`: 0 what was in slots, 1 what was filled, 2 both

static inline bool is_wanted(int target, int which) {
    return target >= 0 && (which == kAnyTarget || (target & 1) == which);
}

// What lies at `offset` in the slot of a wanted target.
static inline const uint8_t* in_slot(const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int target) {
    return slots + static_cast<uint64_t>(target >> 1) * slot_stride + offset;
}

}  // namespace freetoken
