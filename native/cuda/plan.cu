// What a MoE layer of this step does with its experts: which it finds in slots, which it fills into which slots, which
// it leaves to the CPU. One block; `tests/unit/cache_model.py` is its scalar twin and states the rules without tricks.
//
// Neither barriers nor instructions depend on the number of fills q: smallest.h finds the slots to fill in a fixed
// number of passes. Where nothing is filled they are left out.
#include "cuda/cache_state.h"
#include "cuda/device.h"
#include "cuda/smallest.h"

namespace freetoken {
namespace {

constexpr int kFlagWords = 128;  // a bit for each of 4096 experts; neighbours lie in different words, so atomics spread

// Not needed at the same time.
union Scratch {
    uint64_t keys[kMostLayerExperts];     // of misses that may be filled
    uint32_t histogram[kDigits * kWarp];  // a column for each lane, so that no two lanes of a warp meet
    int32_t victims[kMostLayerExperts];   // slots
};

__device__ inline void set_flag(uint32_t* flags, int expert) {
    atomicOr(&flags[expert % kFlagWords], 1u << expert / kFlagWords);
}

__device__ inline bool has_flag(const uint32_t* flags, int expert) {
    return (flags[expert % kFlagWords] >> expert / kFlagWords & 1u) != 0;
}

// The larger key is filled first: the record routed to most recently, then the lower one.
__device__ inline uint64_t fill_key(uint32_t used, int expert) {
    return uint64_t{used} << 32 | static_cast<uint32_t>(kMostLayerExperts - 1 - expert);
}

__device__ inline int expert_of_key(uint64_t key) {
    return kMostLayerExperts - 1 - static_cast<int>(static_cast<uint32_t>(key));
}

// Flags the distinct experts among so many (token, place) pairs.
__device__ inline void flag_routed(const int32_t* ids, int pairs, int experts, uint32_t* routed) {
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += static_cast<int>(blockDim.x))
        if (ids[pair] < experts) set_flag(routed, ids[pair]);
}

struct Tables {
    int32_t* slot_of;
    uint32_t* expert_used;
    int32_t* owner;
    uint32_t* slot_used;
};

struct Layer {
    int experts;
    int first_record;
    int fillable;    // records below it
    uint32_t clock;  // of this plan
};

// Stamps the routed experts and the slots of those that have one, which makes these slots the most recently used of
// all. Flags the hits, counts, and lists the keys of the misses that may be filled, in no particular order.
__device__ void classify(const Tables& tables, const Layer& layer, const uint32_t* routed, uint32_t* hits,
                         int32_t* counts, int32_t* listed, uint64_t* keys) {
    for (int base = 0; base < layer.experts; base += static_cast<int>(blockDim.x)) {
        const int expert = base + static_cast<int>(threadIdx.x);
        const int record = layer.first_record + expert;
        const bool wanted = expert < layer.experts && has_flag(routed, expert);
        int slot = -1;
        uint32_t used = 0;
        if (wanted) {
            slot = tables.slot_of[record];
            used = tables.expert_used[record];
            tables.expert_used[record] = layer.clock;
        }
        const bool hit = slot >= 0;
        if (hit) {
            set_flag(hits, expert);
            tables.slot_used[slot] = layer.clock;
        }
        const bool may_fill = wanted && !hit && record < layer.fillable;
        const unsigned wanted_lanes = __ballot_sync(kAllLanes, wanted);
        const unsigned hit_lanes = __ballot_sync(kAllLanes, hit);
        const unsigned fill_lanes = __ballot_sync(kAllLanes, may_fill);
        int place = 0;
        if (lane_id() == 0) {
            atomicAdd(&counts[kCountDistinct], __popc(wanted_lanes));
            atomicAdd(&counts[kCountHits], __popc(hit_lanes));
            place = atomicAdd(listed, __popc(fill_lanes));
        }
        place = __shfl_sync(kAllLanes, place, 0) + __popc(fill_lanes & ((1u << lane_id()) - 1u));
        if (may_fill) keys[place] = fill_key(used, expert);
    }
}

__device__ inline int carried_fills(const CacheState& state, uint32_t misses, uint32_t& carry) {
    const uint32_t sum = carry + misses * state.fraction;
    carry = sum & 0xFFFFu;
    return static_cast<int>(sum >> 16);
}

// q for m misses that may be filled, before it is cut to the victims that there are; the carry is replaced.
__device__ inline int fills_by_rule(const CacheState& state, const int32_t* split_table, int misses, uint32_t& carry) {
    const auto m = static_cast<uint32_t>(misses);
    switch (state.rule) {
        case kSplitTable: {
            const int last = state.table_length - 1;
            if (misses > last) return split_table[last] + static_cast<int>((m - last) * state.fraction >> 16);
            if (split_table[misses] != kSplitByCarry) return split_table[misses];
            return carried_fills(state, m, carry);
        }
        case kSplitCarry:
            return carried_fills(state, m, carry);
        case kSplitFill:
            return misses;
        default:
            return 0;
    }
}

// The experts to be filled, in their order: those whose keys are exceeded by fewer than `fills` others. A warp for
// each.
__device__ void rank_fills(const uint64_t* keys, int misses, int fills, uint16_t* filled) {
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    for (int i = warp_id(); i < misses; i += warps) {
        const uint64_t key = keys[i];
        int rank = 0;
        for (int base = 0; base < misses; base += kWarp) {
            const int other = base + lane_id();
            rank += __popc(__ballot_sync(kAllLanes, other < misses && keys[other] > key));
        }
        if (lane_id() == 0 && rank < fills) filled[rank] = static_cast<uint16_t>(expert_of_key(key));
    }
}

// Gives each victim to its expert. Victims are no hits of this step, so no record is lost and found at once.
__device__ inline void assign(const Tables& tables, const Layer& layer, const uint16_t* filled, const int32_t* victims,
                              int fills, int32_t* out) {
    for (int i = static_cast<int>(threadIdx.x); i < fills; i += static_cast<int>(blockDim.x)) {
        const int record = layer.first_record + filled[i];
        const int slot = victims[i];
        const int evicted = tables.owner[slot];
        if (evicted >= 0) tables.slot_of[evicted] = -1;
        tables.owner[slot] = record;
        tables.slot_of[record] = slot;
        tables.slot_used[slot] = layer.clock;
        out[2 * i] = record;
        out[2 * i + 1] = slot;
    }
}

__device__ inline void write_targets(const Tables& tables, const Layer& layer, const int32_t* ids, int live_pairs,
                                     int pairs, const uint32_t* hits, int32_t* target) {
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += static_cast<int>(blockDim.x)) {
        int where = kTargetPadding;
        if (pair < live_pairs) {
            const int expert = ids[pair];
            const int slot = expert < layer.experts ? tables.slot_of[layer.first_record + expert] : -1;
            where = slot < 0 ? kTargetCpu : 2 * slot + (has_flag(hits, expert) ? 0 : 1);
            if (expert >= layer.experts) where = kTargetReturned;
        }
        target[pair] = where;
    }
}

}  // namespace

// ids and target are [bucket][top_k]; the first `rows` tokens are live. Record first_record + id of the bank is expert id
// of this layer, of `experts` <= 4096; ids from there on are no experts', and their pairs return their input. fills: (record, slot) pairs, `counts` says how many.
// One block of 32 to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024)
    plan(CacheState* state, int32_t* slot_of, uint32_t* expert_used, int32_t* owner, uint32_t* slot_used,
         const int32_t* split_table, const int32_t* ids, const int32_t* rows, int32_t bucket, int32_t top_k,
         int32_t experts, int32_t first_record, int32_t* target, int32_t* fills, int32_t* counts, uint64_t* totals) {
    SHARED(Scratch, scratch, 1);
    SHARED(uint32_t, sums, kDigits + kDigits / kDigitsOfLane);
    SHARED(uint16_t, filled, kMostLayerExperts);
    SHARED(uint64_t, warp_tallies, kMostWarps);
    SHARED(uint32_t, routed, kFlagWords);
    SHARED(uint32_t, hits, kFlagWords);
    SHARED(int32_t, tallied, kCounts);
    SHARED(int32_t, listed, 1);

    const CacheState before = *state;
    const int live_pairs = min(*rows, bucket) * top_k;
    const Tables tables{slot_of, expert_used, owner, slot_used};
    const Layer layer{experts, first_record, before.fillable, before.clock + 1};

    clear(routed, kFlagWords);
    clear(hits, kFlagWords);
    if (threadIdx.x < kCounts) tallied[threadIdx.x] = 0;
    if (threadIdx.x == 0) listed[0] = 0;
    __syncthreads();
    flag_routed(ids, live_pairs, experts, routed);
    __syncthreads();
    classify(tables, layer, routed, hits, tallied, listed, scratch[0].keys);
    __syncthreads();

    const int distinct = tallied[kCountDistinct];
    const int found = tallied[kCountHits];
    const int may_fill = listed[0];
    uint32_t carry = before.carry;
    const int wished = fills_by_rule(before, split_table, may_fill, carry);
    const int filling = max(0, min(wished, min(may_fill, before.slots - found)));
    if (filling > 0) {
        rank_fills(scratch[0].keys, may_fill, filling, filled);
        __syncthreads();
        clear(scratch[0].histogram, kDigits * kWarp);
        __syncthreads();
        const Cut cut = find_cut(slot_used, before.slots, filling, scratch[0].histogram, sums);
        list_smallest(slot_used, before.slots, cut, warp_tallies, scratch[0].victims);
        __syncthreads();
        assign(tables, layer, filled, scratch[0].victims, filling, fills);
        __syncthreads();
    }
    write_targets(tables, layer, ids, live_pairs, bucket * top_k, hits, target);

    if (threadIdx.x < kCounts) {
        const int missed = distinct - found;
        const int32_t value[kCounts] = {distinct, found, missed, filling, missed - filling, 0, 0, 0};
        const auto i = static_cast<int>(threadIdx.x);
        counts[i] = value[i];
        totals[i] += i == kCountPlans ? 1u : static_cast<uint32_t>(value[i]);
    }
    if (threadIdx.x == 0) {
        state->clock = layer.clock;
        state->carry = carry;
    }
}

}  // namespace freetoken
