// The expert cache of one bank, as kernels and the host see it. Plain data: compiled for the host and for devices.
//
//   slot_of      i32 [records]    the slot that holds a record, or -1
//   expert_used  u32 [records]    clock when it was last routed to, 0: never
//   owner        i32 [capacity]   the record that a slot holds, or -1
//   slot_used    u32 [capacity]   clock when it was last used or filled, 0: never; capacity is a multiple of 4
//   split_table  i32 [4097]       fills for 0, 1, ... misses
//   counts       i32 [8]          of a layer's last plan, by Count
//   totals       u64 [8]          of all plans, by Count
#pragma once

#include <cstdint>

namespace freetoken {

struct CacheState {
    int32_t slots;      // in use: the first so many of the capacity
    uint32_t clock;     // of the last plan; below 2^31, halved by the host with all stamps before it gets there
    int32_t fillable;   // records below it lie where the device can read them
    int32_t rule;       // SplitRule
    uint32_t fraction;  // 16.16 fixed point, at most one
    uint32_t carry;     // what the last carried division left over, 16.16 fixed point, below one
    int32_t table_length;
    int32_t reserved[9];
};
static_assert(sizeof(CacheState) == 64, "as engine/experts/cache.py writes it");

// How m misses that may be filled become q fills.
enum SplitRule : int32_t {
    kSplitTable = 0,  // split_table[m], or the rule below; beyond its end the last entry and `fraction` of the rest
    kSplitCarry = 1,  // m times the fraction and what was left over before
    kSplitFill = 2,   // all of them
    kSplitCpu = 3,    // none
};

// An entry of the table that leaves its number of misses to the rule that carries; never the last one.
inline constexpr int32_t kSplitByCarry = -1;

// What a plan counts, of distinct experts.
enum Count : int32_t {
    kCountDistinct = 0,
    kCountHits = 1,
    kCountMisses = 2,
    kCountFills = 3,
    kCountCpu = 4,
    kCountPlans = 5,  // in totals only
    kCounts = 8,
};

// What `target` says of a (token, place) pair: 2 * slot for a hit, 2 * slot + 1 for a fill, or one of these.
inline constexpr int32_t kTargetCpu = -1;
inline constexpr int32_t kTargetPadding = -2;
inline constexpr int32_t kTargetReturned = -3;  // no expert: the pair's output is its token's input

inline constexpr int kMostLayerExperts = 4096;

}  // namespace freetoken
