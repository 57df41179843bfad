// The expert cache of one bank in ordinary containers: what the kernel `plan` must do. The tables are vectors here too,
// so that they can be compared whole; tests/unit/cache_model.py is the same in Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/cache_state.h"

namespace freetoken::test {

struct CacheTwin {
    CacheState state;
    std::vector<int32_t> slot_of;
    std::vector<uint32_t> expert_used;
    std::vector<int32_t> owner;
    std::vector<uint32_t> slot_used;
    std::vector<int32_t> split_table;
    std::vector<uint64_t> totals = std::vector<uint64_t>(kCounts);

    // What the last plan put out.
    std::vector<int32_t> target;
    std::vector<int32_t> fills;
    std::vector<int32_t> counts;

    CacheTwin(int records, int slots, int capacity)
        : state{},
          slot_of(static_cast<size_t>(records), -1),
          expert_used(static_cast<size_t>(records)),
          owner(static_cast<size_t>(capacity), -1),
          slot_used(static_cast<size_t>(capacity)),
          split_table(kMostLayerExperts + 1) {
        state.slots = slots;
        state.fillable = records;
        state.rule = kSplitFill;
    }

    int carried(int misses) {
        const uint64_t sum = state.carry + uint64_t{state.fraction} * static_cast<uint64_t>(misses);
        state.carry = static_cast<uint32_t>(sum % 65536);
        return static_cast<int>(sum / 65536);
    }

    int wished(int misses) {
        switch (state.rule) {
            case kSplitFill:
                return misses;
            case kSplitCpu:
                return 0;
            case kSplitCarry:
                return carried(misses);
            default: {
                if (misses < state.table_length) {
                    const int32_t fills = split_table[static_cast<size_t>(misses)];
                    return fills == kSplitByCarry ? carried(misses) : fills;
                }
                const int beyond = misses - (state.table_length - 1);
                return split_table[static_cast<size_t>(state.table_length - 1)] +
                       static_cast<int>(uint64_t{state.fraction} * static_cast<uint64_t>(beyond) / 65536);
            }
        }
    }

    // `ids` are those of the live tokens, `pairs` the room for them.
    void plan(const std::vector<int32_t>& ids, int pairs, int first_record) {
        ++state.clock;
        std::set<int32_t> wanted;
        for (const int32_t id : ids) wanted.insert(first_record + id);
        std::set<int32_t> hits;
        std::vector<std::tuple<int64_t, int32_t>> may_fill;
        int missed = 0;
        for (const int32_t record : wanted) {
            if (slot_of[static_cast<size_t>(record)] >= 0) {
                hits.insert(record);
                continue;
            }
            ++missed;
            if (record < state.fillable)
                may_fill.emplace_back(-int64_t{expert_used[static_cast<size_t>(record)]}, record);
        }
        std::sort(may_fill.begin(), may_fill.end());
        std::vector<std::tuple<uint32_t, int32_t>> spare;
        for (int32_t slot = 0; slot < state.slots; ++slot) {
            if (hits.count(owner[static_cast<size_t>(slot)]) == 0)
                spare.emplace_back(slot_used[static_cast<size_t>(slot)], slot);
        }
        std::sort(spare.begin(), spare.end());

        const int most = static_cast<int>(std::min(may_fill.size(), spare.size()));
        const int q = std::clamp(wished(static_cast<int>(may_fill.size())), 0, most);
        std::vector<int32_t> victims;
        for (int i = 0; i < q; ++i) victims.push_back(std::get<1>(spare[static_cast<size_t>(i)]));
        std::sort(victims.begin(), victims.end());
        fills.clear();
        for (int i = 0; i < q; ++i) {
            const int32_t slot = victims[static_cast<size_t>(i)];
            const int32_t record = std::get<1>(may_fill[static_cast<size_t>(i)]);
            int32_t& old = owner[static_cast<size_t>(slot)];
            if (old >= 0) slot_of[static_cast<size_t>(old)] = -1;
            old = record;
            slot_of[static_cast<size_t>(record)] = slot;
            fills.push_back(record);
            fills.push_back(slot);
        }
        for (const int32_t record : wanted) {
            expert_used[static_cast<size_t>(record)] = state.clock;
            const int32_t slot = slot_of[static_cast<size_t>(record)];
            if (slot >= 0) slot_used[static_cast<size_t>(slot)] = state.clock;
        }

        target.assign(static_cast<size_t>(pairs), kTargetPadding);
        for (size_t i = 0; i < ids.size(); ++i) {
            const int32_t record = first_record + ids[i];
            const int32_t slot = slot_of[static_cast<size_t>(record)];
            target[i] = slot < 0 ? kTargetCpu : 2 * slot + (hits.count(record) != 0 ? 0 : 1);
        }
        counts = {
            static_cast<int32_t>(wanted.size()), static_cast<int32_t>(hits.size()), missed, q, missed - q, 0, 0, 0};
        for (size_t i = 0; i < kCounts; ++i) totals[i] += static_cast<uint64_t>(counts[i]);
        ++totals[kCountPlans];
    }
};

}  // namespace freetoken::test
