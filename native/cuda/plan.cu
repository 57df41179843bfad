// What a MoE layer of this step does with its experts: which it finds in slots, which it fills into which slots, which
// it leaves to the CPU. One block; `tests/unit/cache_model.py` is its scalar twin and states the rules without tricks.
//
// Neither barriers nor instructions depend on the number of fills q. The q least recently used slots are found by a
// radix select over their stamps, four digits of eight bits, and written in ascending order after two more reads; so
// each stamp is read six times, whatever q is. Where nothing is filled all of that is left out.
#include "cuda/cache_state.h"
#include "cuda/device.h"

namespace freetoken {
namespace {

constexpr int kFlagWords = 128;  // a bit for each of 4096 experts; neighbours lie in different words, so atomics spread
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kDigitPasses = 4;
constexpr int kDigitsOfLane = kDigits / kWarp;
constexpr int kMostWarps = 32;

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

__device__ inline int lane_id() {
    return static_cast<int>(threadIdx.x) % kWarp;
}

__device__ inline int warp_id() {
    return static_cast<int>(threadIdx.x) / kWarp;
}

// Sum over this lane and those below it.
template <class T>
__device__ inline T inclusive_sum(T value) {
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const T below = __shfl_up_sync(kAllLanes, value, distance);
        if (lane_id() >= static_cast<int>(distance)) value += below;
    }
    return value;
}

__device__ inline void clear(uint32_t* words, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) words[i] = 0;
}

// Flags the distinct experts among so many (token, place) pairs.
__device__ inline void flag_routed(const int32_t* ids, int pairs, uint32_t* routed) {
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += static_cast<int>(blockDim.x))
        set_flag(routed, ids[pair]);
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

// Four neighbouring stamps of slots; `valid` of them belong to slots in use.
struct Stamps {
    uint32_t stamp[4];
    int valid;
};

__device__ inline Stamps load_stamps(const uint32_t* slot_used, int vector, int slots) {
    if (4 * vector >= slots) return {{0, 0, 0, 0}, 0};
    const uint4 four = reinterpret_cast<const uint4*>(slot_used)[vector];
    return {{four.x, four.y, four.z, four.w}, min(slots - 4 * vector, 4)};
}

// The victims are the slots whose stamp is below `stamp`, and the first `ties` of those that have it.
struct Cut {
    uint32_t stamp;
    int ties;
};

// Adds up the columns of the histogram, and clears them. Every eight sums are followed by a gap: see find_digit.
__device__ inline void sum_columns(uint32_t* histogram, uint32_t* sums) {
    for (int digit = static_cast<int>(threadIdx.x); digit < kDigits; digit += static_cast<int>(blockDim.x)) {
        uint32_t sum = 0;
        for (int i = 0; i < kWarp; ++i) {
            uint32_t& column = histogram[digit * kWarp + (i + digit) % kWarp];  // each lane in a bank of its own
            sum += column;
            column = 0;
        }
        sums[digit + digit / kDigitsOfLane] = sum;
    }
}

// The digit of the stamp that is number `wanted` (from 1) in ascending order; `wanted` becomes its number among those
// with that digit. Every warp finds it for itself, which saves a barrier; the gaps put the lanes' reads into different
// banks.
__device__ inline uint32_t find_digit(const uint32_t* sums, int& wanted) {
    int sum_to[kDigitsOfLane];
    int sum = 0;
    for (int i = 0; i < kDigitsOfLane; ++i) {
        sum += static_cast<int>(sums[lane_id() * (kDigitsOfLane + 1) + i]);
        sum_to[i] = sum;
    }
    const int before = inclusive_sum(sum) - sum;
    int below = before;
    int digit = lane_id() * kDigitsOfLane;
    for (int i = 0; i < kDigitsOfLane; ++i) {
        const bool past = before + sum_to[i] < wanted;
        below = past ? before + sum_to[i] : below;
        digit += static_cast<int>(past);
    }
    const bool here = before < wanted && wanted <= before + sum;
    const int source = __ffs(static_cast<int>(__ballot_sync(kAllLanes, here))) - 1;
    wanted -= __shfl_sync(kAllLanes, below, source);
    return static_cast<uint32_t>(__shfl_sync(kAllLanes, digit, source));
}

// Finds where `fills` least recently used slots end. Every stamp adds to the histogram, if only 0, in every pass.
__device__ Cut find_cut(const uint32_t* slot_used, int slots, int fills, uint32_t* histogram, uint32_t* sums) {
    uint32_t prefix = 0;
    int wanted = fills;
    for (int pass = kDigitPasses - 1; pass >= 0; --pass) {
        const int shift = pass * kDigitBits;
        for (int vector = static_cast<int>(threadIdx.x); 4 * vector < slots; vector += static_cast<int>(blockDim.x)) {
            const Stamps four = load_stamps(slot_used, vector, slots);
            for (int i = 0; i < 4; ++i) {
                const uint32_t upper = four.stamp[i] >> shift;
                const unsigned counts = unsigned{i < four.valid} & unsigned{upper >> kDigitBits == prefix};
                atomicAdd(&histogram[upper % kDigits * kWarp + static_cast<uint32_t>(lane_id())], counts);
            }
        }
        __syncthreads();
        sum_columns(histogram, sums);
        __syncthreads();
        prefix = prefix << kDigitBits | find_digit(sums, wanted);
    }
    return {prefix, wanted};
}

// Stamps below the cut in the lower half, stamps at the cut in the upper half: counted and added up together. Without
// branches, as is what follows: how many stamps lie below the cut shall cost nothing.
__device__ inline uint64_t tally(const Stamps& four, int i, const Cut& cut) {
    const unsigned valid = i < four.valid;
    const unsigned below = valid & (four.stamp[i] < cut.stamp);
    const unsigned at = valid & (four.stamp[i] == cut.stamp);
    return uint64_t{at} << 32 | below;
}

__device__ inline int below_cut(uint64_t tally) {
    return static_cast<int>(static_cast<uint32_t>(tally));
}

__device__ inline int at_cut(uint64_t tally) {
    return static_cast<int>(tally >> 32);
}

// Lists the victims in ascending order. Each warp has a run of the slots: it counts, learns what the warps before it
// counted, and writes.
__device__ void list_victims(const uint32_t* slot_used, int slots, const Cut& cut, uint64_t* warp_tallies,
                             int32_t* victims) {
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    const int slots_a_round = 4 * kWarp;
    const int rounds = (slots + warps * slots_a_round - 1) / (warps * slots_a_round);
    const int first_vector = warp_id() * rounds * kWarp + lane_id();

    uint64_t mine = 0;
    for (int round = 0; round < rounds; ++round) {
        const Stamps four = load_stamps(slot_used, first_vector + round * kWarp, slots);
        for (int i = 0; i < 4; ++i) mine += tally(four, i, cut);
    }
    const uint64_t counted = inclusive_sum(mine);
    if (lane_id() == kWarp - 1) warp_tallies[warp_id()] = counted;
    __syncthreads();

    const uint64_t of_warp = lane_id() < warps ? warp_tallies[lane_id()] : 0;
    uint64_t before = __shfl_sync(kAllLanes, inclusive_sum(of_warp) - of_warp, warp_id());
    for (int round = 0; round < rounds; ++round) {
        const int vector = first_vector + round * kWarp;
        const Stamps four = load_stamps(slot_used, vector, slots);
        uint64_t own = 0;
        for (int i = 0; i < 4; ++i) own += tally(four, i, cut);
        const uint64_t counted_here = inclusive_sum(own);
        uint64_t at = before + counted_here - own;
        for (int i = 0; i < 4; ++i) {
            const uint64_t this_one = tally(four, i, cut);
            const int victim = below_cut(this_one) | (at_cut(this_one) & static_cast<int>(at_cut(at) < cut.ties));
            if (victim != 0) victims[below_cut(at) + min(at_cut(at), cut.ties)] = 4 * vector + i;
            at += this_one;
        }
        before += __shfl_sync(kAllLanes, counted_here, kWarp - 1);
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
            const int slot = tables.slot_of[layer.first_record + expert];
            where = slot < 0 ? kTargetCpu : 2 * slot + (has_flag(hits, expert) ? 0 : 1);
        }
        target[pair] = where;
    }
}

}  // namespace

// ids and target are [bucket][top_k]; the first `rows` tokens are live, whose ids are below `experts` <= 4096. Record
// first_record + id of the bank is expert id of this layer. fills: (record, slot) pairs, `counts` says how many.
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
    flag_routed(ids, live_pairs, routed);
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
        list_victims(slot_used, before.slots, cut, warp_tallies, scratch[0].victims);
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
