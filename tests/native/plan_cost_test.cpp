// What the kernel `plan` costs: for a cache of one size the same, however many experts it fills.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <vector>

#include "cache_twin.h"
#include "check.h"
#include "random.h"
#include "sim/emulator.h"

namespace freetoken::test {
namespace {

#ifdef FREETOKEN_SIM_THREADS  // threads of the system are slow
constexpr unsigned kThreads = 64;
constexpr std::array<int, 1> kSlots = {1'000};
constexpr std::array<int, 2> kFills = {2, 64};
#else
constexpr unsigned kThreads = 1024;
constexpr std::array<int, 5> kSlots = {256, 1'000, 4'000, 10'000, 40'000};
constexpr std::array<int, 8> kFills = {2, 3, 8, 31, 32, 33, 63, 64};
#endif
constexpr int kExperts = 256;
constexpr int kMisses = 64;
constexpr int kTokens = 8;

std::array<std::atomic<uint64_t>, kThreads> blocks;  // executed by each thread

// What a plan did. The basic blocks are those of the busiest lane of each warp together: about what the warps issue.
struct Cost {
    uint64_t barriers = 0;
    uint64_t collectives = 0;
    uint64_t shared_atomics = 0;
    uint64_t global_atomics = 0;
    uint64_t warp_blocks = 0;
};

// A plan of experts that all miss, with a table that wishes `fills` of them, over slots that other layers hold, with
// stamps of all sizes.
Cost cost_of_plan(int slots, int fills) {
    const int layers = 1 + (slots + kExperts - 1) / kExperts;
    Random random(11);
    CacheTwin cache(layers * kExperts, slots, (slots + 3) / 4 * 4);
    for (int slot = 0; slot < slots; ++slot) {
        cache.owner[static_cast<size_t>(slot)] = kExperts + slot;
        cache.slot_of[static_cast<size_t>(kExperts + slot)] = slot;
        cache.slot_used[static_cast<size_t>(slot)] = random.bits() >> random.between(1, 31);
    }
    cache.state.clock = 0x7FFFFFF0u;
    cache.state.rule = kSplitTable;
    cache.state.table_length = kMisses + 1;
    cache.split_table[kMisses] = fills;
    std::vector<int32_t> ids(kMisses);
    std::iota(ids.begin(), ids.end(), 17);
    std::vector<int32_t> target(kMisses), filled(2 * kExperts), counts(kCounts);
    const int rows = kTokens;

    for (auto& count : blocks) count = 0;
    sim::Emulator emulator(1, 5);
    const sim::Counters counters = emulator.launch(
        "plan_counted", {{1, 1, 1}, kThreads, 0}, &cache.state, cache.slot_of.data(), cache.expert_used.data(),
        cache.owner.data(), cache.slot_used.data(), cache.split_table.data(), ids.data(), &rows, kTokens,
        kMisses / kTokens, kExperts, 0, target.data(), filled.data(), counts.data(), cache.totals.data());
    CHECK(counts[kCountMisses] == kMisses && counts[kCountFills] == fills, "%d misses, %d fills", counts[kCountMisses],
          counts[kCountFills]);

    Cost cost = {counters.barriers, counters.collectives, counters.shared_atomics, counters.global_atomics, 0};
    for (size_t warp = 0; warp < kThreads; warp += 32) {
        uint64_t busiest = 0;
        for (size_t lane = 0; lane < 32; ++lane) busiest = std::max<uint64_t>(busiest, blocks[warp + lane]);
        cost.warp_blocks += busiest;
    }
    return cost;
}

void print(int slots, int fills, const Cost& cost) {
    std::printf("     %5d slots, q = %2d: %2llu barriers, %4llu collectives, %6llu atomics, %5llu blocks of warps\n",
                slots, fills, static_cast<unsigned long long>(cost.barriers),
                static_cast<unsigned long long>(cost.collectives), static_cast<unsigned long long>(cost.shared_atomics),
                static_cast<unsigned long long>(cost.warp_blocks));
}

}  // namespace

void count_block() {
    blocks[sim::threadIdx.x].fetch_add(1, std::memory_order_relaxed);
}

FREETOKEN_TEST(plan_costs_the_same_for_any_number_of_fills) {
    for (const int slots : kSlots) {
        const Cost none = cost_of_plan(slots, 0);
        const Cost one = cost_of_plan(slots, 1);
        print(slots, 0, none);
        print(slots, 1, one);
        CHECK(none.barriers < one.barriers && 2 * none.warp_blocks < one.warp_blocks, "%d slots: nothing to skip",
              slots);
        Cost more;
        for (const int fills : kFills) {
            more = cost_of_plan(slots, fills);
            CHECK(more.barriers == one.barriers && more.collectives == one.collectives &&
                      more.shared_atomics == one.shared_atomics && more.global_atomics == one.global_atomics,
                  "%d slots, %d fills", slots, fills);
            // A fill is written down by one lane, while the others of its warp wait; the rest of the two percent is for
            // builds that do not turn selections into moves.
            CHECK(more.warp_blocks * 50 <= one.warp_blocks * 51,
                  "%d slots, %d fills: %llu blocks of warps, of one fill %llu", slots, fills,
                  static_cast<unsigned long long>(more.warp_blocks), static_cast<unsigned long long>(one.warp_blocks));
        }
        print(slots, 64, more);
    }
}

}  // namespace freetoken::test

extern "C" void __sanitizer_cov_trace_pc() {
    freetoken::test::count_block();
}

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
