// The kernels of the expert cache, emulated, against plain containers, plain copies and the native merge.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "cache_twin.h"
#include "check.h"
#include "core/float_mode.h"
#include "core/numerics.h"
#include "hybrid/mailbox.h"
#include "ops/ops.h"
#include "random.h"
#include "sim/emulator.h"

namespace freetoken::test {
namespace {

// Threads of the system instead of fibers are slow, and there for the sanitizer: it needs every path, not every case.
#ifdef FREETOKEN_SIM_THREADS
constexpr int kCaches = 40;
constexpr int kSteps = 6;
#else
constexpr int kCaches = 150;
constexpr int kSteps = 60;
#endif

struct Geometry {
    int layers = 1;
    int experts = 8;
    int slots = 4;
    int top_k = 2;
    int bucket = 1;
    unsigned threads = 64;
};

// The tables of a cache as the kernels see them, and the launch.
struct DeviceCache {
    explicit DeviceCache(const CacheTwin& twin)
        : state(twin.state),
          slot_of(twin.slot_of),
          expert_used(twin.expert_used),
          owner(twin.owner),
          slot_used(twin.slot_used),
          split_table(twin.split_table) {}

    sim::Counters plan(sim::Emulator& emulator, const Geometry& g, const std::vector<int32_t>& ids, int rows,
                       int layer) {
        target.assign(static_cast<size_t>(g.bucket * g.top_k), 12345);
        fills.assign(static_cast<size_t>(2 * g.experts), 12345);
        counts.assign(kCounts, 12345);
        return emulator.launch("plan", {{1, 1, 1}, g.threads, 0}, &state, slot_of.data(), expert_used.data(),
                               owner.data(), slot_used.data(), split_table.data(), ids.data(), &rows, g.bucket, g.top_k,
                               g.experts, layer * g.experts, target.data(), fills.data(), counts.data(), totals.data());
    }

    CacheState state;
    std::vector<int32_t> slot_of;
    std::vector<uint32_t> expert_used;
    std::vector<int32_t> owner;
    std::vector<uint32_t> slot_used;
    std::vector<int32_t> split_table;
    std::vector<uint64_t> totals = std::vector<uint64_t>(kCounts);
    std::vector<int32_t> target;
    std::vector<int32_t> fills;
    std::vector<int32_t> counts;
};

bool same(DeviceCache& device, const CacheTwin& twin) {
    device.fills.resize(2 * static_cast<size_t>(device.counts[kCountFills]));
    return std::memcmp(&device.state, &twin.state, sizeof twin.state) == 0 && device.slot_of == twin.slot_of &&
           device.expert_used == twin.expert_used && device.owner == twin.owner && device.slot_used == twin.slot_used &&
           device.target == twin.target && device.fills == twin.fills && device.counts == twin.counts &&
           device.totals == twin.totals;
}

int rounded_up(int n, int to) {
    return (n + to - 1) / to * to;
}

Geometry random_geometry(Random& random) {
    Geometry g;
    g.layers = random.between(1, 4);
    g.experts = random.pick({1, 2, 5, 8, 16, 33, 60, 300});
    g.top_k = random.between(1, std::min(g.experts, 8));
    g.bucket = random.pick({1, 1, 2, 4, 8});
    const int records = g.layers * g.experts;
    g.slots = random.pick({0, 1, g.top_k, random.between(0, records), random.between(0, records), records});
    g.threads = static_cast<unsigned>(32 * random.between(1, 3));
    return g;
}

void random_rule(Random& random, CacheState& state, std::vector<int32_t>& table) {
    state.rule = random.between(0, 3);
    state.fraction = static_cast<uint32_t>(random.pick({0, 65536, random.between(0, 65536), random.between(0, 65536)}));
    state.table_length = random.between(1, 20);
    for (int m = 0; m < state.table_length; ++m) table[static_cast<size_t>(m)] = random.between(-1, m + 1);
}

// Distinct experts of a token, as a router gives them; a token in three repeats the one before it.
std::vector<int32_t> random_ids(Random& random, const Geometry& g, int rows) {
    std::vector<int32_t> ids(static_cast<size_t>(g.bucket * g.top_k), -777);  // rows that are padding hold anything
    std::vector<int32_t> experts(static_cast<size_t>(g.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (int row = 0; row < rows; ++row) {
        if (row == 0 || random.between(0, 2) != 0) {
            for (int i = 0; i < g.top_k; ++i)
                std::swap(experts[static_cast<size_t>(i)],
                          experts[static_cast<size_t>(random.between(i, g.experts - 1))]);
        }
        std::copy_n(experts.begin(), g.top_k, ids.begin() + static_cast<ptrdiff_t>(row) * g.top_k);
    }
    return ids;
}

std::vector<uint8_t> random_bytes(Random& random, size_t count) {
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
    return bytes;
}

// Rows of outputs with numbers of all sizes, and some that are none.
std::vector<float> random_rows(Random& random, size_t count) {
    std::vector<float> values(count);
    for (float& value : values) {
        value = std::ldexp(random.normal(), random.between(-20, 20));
        if (random.between(0, 200) == 0) value = std::numeric_limits<float>::infinity();
        if (random.between(0, 200) == 0) value = float_of(0xFFC12345u);
        if (random.between(0, 50) == 0) value = -0.0f;
    }
    return values;
}

}  // namespace

FREETOKEN_TEST(plan_does_what_plain_containers_do) {
    Random random(1);
    int fills = 0, hits = 0, left = 0;
    for (int cache = 0; cache < kCaches; ++cache) {
        const Geometry g = random_geometry(random);
        const int records = g.layers * g.experts;
        CacheTwin twin(records, g.slots, rounded_up(records, 4));
        twin.state.fillable = random.pick({records, records, random.between(0, records)});
        twin.state.clock = static_cast<uint32_t>(random.pick({0, 255, 65535, 0x7FFFFF00}));
        random_rule(random, twin.state, twin.split_table);
        DeviceCache device(twin);
        sim::Emulator emulator(1, random.bits());
        for (int step = 0; step < kSteps; ++step) {
            const int rows = random.between(0, g.bucket);
            const int layer = random.between(0, g.layers - 1);
            const std::vector<int32_t> ids = random_ids(random, g, rows);
            device.plan(emulator, g, ids, rows, layer);
            twin.plan({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(rows) * g.top_k}, g.bucket * g.top_k,
                      layer * g.experts);
            const bool equal = same(device, twin);
            CHECK(equal, "cache %d, step %d", cache, step);
            if (!equal) return;
        }
        hits += static_cast<int>(twin.totals[kCountHits]);
        fills += static_cast<int>(twin.totals[kCountFills]);
        left += static_cast<int>(twin.totals[kCountCpu]);
    }
    CHECK(hits > 0 && fills > 0 && left > 0, "%d hits, %d fills, %d for the CPU", hits, fills, left);
}

FREETOKEN_TEST(fill_copies_each_record_into_its_slot_and_nothing_else) {
    Random random(2);
    for (const uint64_t record_bytes : {uint64_t{4096}, uint64_t{12288}, uint64_t{16384}, uint64_t{36864}}) {
        const uint32_t a_shard = 3;
        const uint32_t records = 8;
        const uint64_t stride = record_bytes + 4096;
        std::vector<std::vector<uint8_t>> shards;
        std::vector<uint64_t> addresses;
        for (uint32_t first = 0; first < records; first += a_shard)
            shards.push_back(random_bytes(random, std::min(a_shard, records - first) * record_bytes));
        for (const auto& shard : shards) addresses.push_back(reinterpret_cast<uint64_t>(shard.data()));
        const std::vector<uint8_t> before = random_bytes(random, 5 * stride);
        std::vector<uint8_t> slots = before;
        const std::vector<int32_t> fills = {7, 2, 0, 4, 3, 1, 5, 0};  // the last pair lies beyond the count
        const std::vector<int32_t> counts = {3, 0, 3, 3, 0, 0, 0, 0};
        sim::Emulator emulator(2, 3);
        emulator.launch("fill", {{3, 1, 1}, 64, 0}, addresses.data(), a_shard, record_bytes, fills.data(),
                        counts.data(), slots.data(), stride);
        std::vector<uint8_t> expected = before;
        for (size_t i = 0; i < 3; ++i) {
            const auto record = static_cast<uint32_t>(fills[2 * i]);
            std::memcpy(expected.data() + static_cast<uint64_t>(fills[2 * i + 1]) * stride,
                        shards[record / a_shard].data() + record % a_shard * record_bytes, record_bytes);
        }
        CHECK(slots == expected, "records of %llu bytes", static_cast<unsigned long long>(record_bytes));
    }
}

FREETOKEN_TEST(stage_hands_over_the_pairs_and_rows_of_the_cpu_alone) {
    Random random(3);
    const int bucket = 4, rows = 3, top_k = 3, hidden = 37, x_stride = 48;
    const std::vector<int32_t> ids = {4, 1, 7, 2, 3, 0, 5, 6, 1, -9, -9, -9};
    const std::vector<int32_t> target = {0, -1, 5, 2, 4, 9, -1, -1, -1, -2, -2, -2};
    const std::vector<float> x = random_rows(random, bucket * x_stride);
    const MailboxLayout layout = mailbox_layout(bucket, top_k, hidden);
    const auto block = std::make_unique<MailboxHeader[]>(layout.bytes / sizeof(MailboxHeader) + 1);
    auto* box = reinterpret_cast<uint8_t*>(block.get());
    std::memset(box, 0x5A, layout.bytes);
    auto* box_ids = reinterpret_cast<int32_t*>(box + layout.ids);
    auto* box_x = reinterpret_cast<float*>(box + layout.inputs);
    sim::Emulator emulator(2, 4);
    emulator.launch("stage", {{2, bucket, 1}, 32, 0}, x.data(), x_stride, ids.data(), target.data(), &rows, top_k,
                    hidden, block.get(), box_ids, box_x);

    CHECK(block[0].rows == 3 && block[0].top_k == 3 && block[0].done == 0, "header of %u rows", block[0].rows);
    CHECK(block[0].request == 0x5A5A5A5Au && block[0].failed == 0x5A5A5A5Au, "words that are not stage's");
    const std::vector<int32_t> wanted = {-1, 1, -1, -1, -1, -1, 5, 6, 1};
    CHECK(std::equal(wanted.begin(), wanted.end(), box_ids), "ids");
    CHECK(box_ids[9] == 0x5A5A5A5A, "an id of a row that is padding");
    const auto stride = static_cast<size_t>(mailbox_row_stride(hidden));
    for (size_t row = 0; row < bucket; ++row) {
        const bool sent = row == 0 || row == 2;
        for (size_t i = 0; i < hidden; ++i) {
            const uint32_t expected = sent ? bits_of(x[row * x_stride + i]) : 0x5A5A5A5Au;
            CHECK(bits_of(box_x[row * stride + i]) == expected, "row %zu, column %zu", row, i);
        }
    }
}

FREETOKEN_TEST(merge_has_the_bits_of_the_native_merge) {
    const FloatMode mode;
    Random random(5);
    sim::Emulator emulator(2, 6);
    const Operations* native = operations_for("scalar");
    for (int trial = 0; trial < 20; ++trial) {
        const int bucket = 3, rows = random.between(0, 3), top_k = random.between(1, 9);
        const int hidden = random.between(1, 70), stride = rounded_up(hidden, 16), y_stride = hidden + 3;
        const auto pairs = static_cast<size_t>(bucket * top_k);
        const auto width = static_cast<size_t>(stride);
        const std::vector<float> device = random_rows(random, pairs * width);
        const std::vector<float> host = random_rows(random, pairs * width);
        const std::vector<float> x = random_rows(random, static_cast<size_t>(bucket) * width);
        const std::vector<float> weights = random_rows(random, pairs);
        std::vector<int32_t> target(pairs, kTargetPadding);
        for (size_t i = 0; i < static_cast<size_t>(rows * top_k); ++i) target[i] = random.between(-1, 3);
        for (size_t i = 0; i < static_cast<size_t>(rows * top_k); i += 5) target[i] = kTargetReturned;
        std::vector<float> y(static_cast<size_t>(bucket * y_stride), 7.0f);
        std::vector<float> expected = y;
        for (int row = 0; row < rows; ++row) {
            std::vector<const float*> outputs;
            for (int j = 0; j < top_k; ++j) {
                const auto pair = static_cast<size_t>(row * top_k + j);
                const float* computed = (target[pair] == -1 ? host : device).data() + pair * width;
                outputs.push_back(target[pair] == kTargetReturned ? x.data() + static_cast<size_t>(row) * width
                                                                  : computed);
            }
            native->merge(outputs.data(), weights.data() + row * top_k, top_k, hidden,
                          expected.data() + row * y_stride);
        }
        emulator.launch("merge", {{2, static_cast<unsigned>(bucket), 1}, 32, 0}, x.data(), stride, device.data(),
                        host.data(), stride, target.data(), weights.data(), &rows, top_k, hidden, y.data(), y_stride);
        CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0, "trial %d", trial);
    }
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
