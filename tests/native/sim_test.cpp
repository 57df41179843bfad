// The emulator of kernels: what kernels compute, in which orders, and what they are refused.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "check.h"
#include "random.h"
#include "sim/address_range.h"
#include "sim/emulator.h"
#include "sim_kernels.h"

namespace freetoken::test {
namespace {

#ifdef FREETOKEN_SIM_THREADS  // a thousand threads of the system take seconds
constexpr uint64_t kSeeds = 1;
constexpr uint64_t kMostThreadRuns = 256;
#else
constexpr uint64_t kSeeds = 10;
constexpr uint64_t kMostThreadRuns = 10240;
#endif

using sim::Counters;
using sim::Emulator;
using sim::Shape;

std::vector<uint32_t> counting(size_t n) {
    std::vector<uint32_t> values(n);
    std::iota(values.begin(), values.end(), 1u);
    return values;
}

// What is said against a launch.
template <class... A>
std::string refusal(const char* kernel, const Shape& shape, A... arguments) {
    Emulator emulator;
    try {
        emulator.launch(kernel, shape, arguments...);
    } catch (const sim::KernelError& error) {
        return error.what();
    }
    return "accepted";
}

template <class... A>
void expect(const char* part, const char* kernel, const Shape& shape, A... arguments) {
    const std::string text = refusal(kernel, shape, arguments...);
    CHECK(text.find(part) != std::string::npos, "%s: \"%s\" does not say \"%s\"", kernel, text.c_str(), part);
}

// How often each number of [0, n) is there.
bool each_comes(const std::vector<uint32_t>& numbers, size_t n, size_t times) {
    std::vector<size_t> seen(n);
    for (const uint32_t number : numbers)
        if (number < n) ++seen[number];
    return numbers.size() == n * times && std::all_of(seen.begin(), seen.end(), [&](size_t s) { return s == times; });
}

}  // namespace

FREETOKEN_TEST(a_flat_kernel_touches_every_thread_of_every_block) {
    Emulator emulator(2);
    std::vector<float> x(1000), y(1024, -1.0f);
    std::iota(x.begin(), x.end(), 0.0f);
    emulator.launch("scale_by_thread", {{8}, 128}, x.data(), 1000, 2.0f, y.data());
    for (size_t i = 0; i < y.size(); ++i)
        CHECK(y[i] == (i < 1000 ? 2.0f * static_cast<float>(i) : -1.0f), "value %zu is %g", i, y[i]);
}

FREETOKEN_TEST(barriers_hold_threads_back) {
    for (const unsigned threads : {32u, 64u, 256u, 1024u}) {
        for (uint64_t seed = 0; seed < kSeeds && threads * kSeeds <= kMostThreadRuns; ++seed) {
            Emulator emulator(2, seed);
            const auto x = counting(4 * threads);
            std::vector<uint32_t> sums(4);
            const Counters counters = emulator.launch("sum_row", {{4}, threads}, x.data(), sums.data());
            for (unsigned b = 0; b < 4; ++b) {
                const uint32_t wanted = threads * (2 * b * threads + threads + 1) / 2;
                CHECK(sums[b] == wanted, "%u threads, block %u: %u instead of %u", threads, b, sums[b], wanted);
            }
            CHECK(counters.barriers == static_cast<uint64_t>(__builtin_ctz(threads)), "%llu barriers",
                  static_cast<unsigned long long>(counters.barriers));
        }
    }
}

FREETOKEN_TEST(shuffles_exchange_within_a_warp) {
    Emulator emulator;
    const auto x = counting(128);
    std::vector<uint32_t> sums(4);
    const Counters counters = emulator.launch("sum_warp", {{1}, 128}, x.data(), sums.data());
    for (unsigned w = 0; w < 4; ++w) CHECK(sums[w] == 16 * (64 * w + 33), "warp %u: %u", w, sums[w]);
    CHECK(counters.collectives == 4 * 5, "%llu", static_cast<unsigned long long>(counters.collectives));
}

FREETOKEN_TEST(collectives_do_what_their_names_say) {
    Emulator emulator;
    constexpr unsigned kThreads = 96;
    std::vector<uint64_t> x(kThreads);
    for (unsigned t = 0; t < kThreads; ++t) x[t] = uint64_t{t} * 0x100000001u % 1009;
    std::vector<uint64_t> out(8 * kThreads);
    emulator.launch("collectives", {{1}, kThreads}, x.data(), out.data());
    const auto evens = static_cast<uint64_t>(std::count_if(x.begin(), x.end(), [](uint64_t v) { return v % 2 == 0; }));
    const bool seven = std::count(x.begin(), x.end(), 7u) > 0;
    for (unsigned t = 0; t < kThreads; ++t) {
        const unsigned lane = t % 32, base = t - lane;
        uint64_t ballot = 0;
        bool any = false, all = true;
        for (unsigned l = 0; l < 32; ++l) {
            ballot |= uint64_t{x[base + l] % 3 == 0} << l;
            any = any || x[base + l] == 1;
            all = all && x[base + l] < 1000;
        }
        const uint64_t wanted[8] = {
            x[base + 5], x[lane < 3 ? t : t - 3], x[lane > 28 ? t : t + 3], ballot, any, all, evens, seven};
        for (unsigned i = 0; i < 8; ++i)
            CHECK(out[8 * t + i] == wanted[i], "thread %u, result %u: %llu instead of %llu", t, i,
                  static_cast<unsigned long long>(out[8 * t + i]), static_cast<unsigned long long>(wanted[i]));
    }
}

FREETOKEN_TEST(tensor_cores_multiply_matrices) {
    Emulator emulator;
    Random random(5);
    std::vector<uint8_t> a(16 * 32), b(2 * 8 * 32);
    for (auto* bytes : {&a, &b})
        for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random.bits());
    std::vector<int32_t> d(2 * 16 * 8);
    emulator.launch("multiply", {{1}, 32}, a.data(), b.data(), d.data());
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) {  // eight of each product
            int32_t wanted = 1;
            for (int k = 0; k < 32; ++k)
                wanted += static_cast<int8_t>(a[32 * row + k]) * static_cast<int8_t>(b[32 * column + k]);
            const int32_t got = d[128 * (column / 8) + 8 * row + column % 8];
            CHECK(got == wanted, "%d, %d: %d instead of %d", row, column, got, wanted);
        }
    }
}

FREETOKEN_TEST(integer_instructions_are_those_of_the_device) {
    CHECK(__dp4a(static_cast<int>(0x80FF017Fu), static_cast<int>(0x80FF01FFu), 10) == 16384 + 1 + 1 - 127 + 10, "%d",
          __dp4a(static_cast<int>(0x80FF017Fu), static_cast<int>(0x80FF01FFu), 10));
    CHECK(__dp4a(0xFFFFFFFFu, 0xFFFFFFFFu, 1u) == 4 * 255 * 255 + 1, "unsigned");
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7351u) == 0x77335511u, "%x",
          __byte_perm(0x33221100u, 0x77665544u, 0x7351u));
    CHECK(__clz(0) == 32 && __clz(1) == 31 && __ffs(0) == 0 && __ffs(8) == 4 && __popc(0xF0F0u) == 8, "bits");
    CHECK(__brev(1u) == 0x80000000u && __umulhi(0x80000000u, 6u) == 3u, "words");
}

FREETOKEN_TEST(atomics_lose_nothing_and_are_counted) {
    Emulator emulator(3);
    const auto x = counting(8 * 256);
    std::vector<uint32_t> counts(16);
    const Counters counters = emulator.launch("count_values", {{8}, 256}, x.data(), counts.data());
    for (unsigned i = 0; i < 16; ++i) CHECK(counts[i] == 128, "%u: %u", i, counts[i]);
    CHECK(counters.shared_atomics == 8 * 256 && counters.global_atomics == 8 * 16, "%llu shared, %llu global",
          static_cast<unsigned long long>(counters.shared_atomics),
          static_cast<unsigned long long>(counters.global_atomics));
}

FREETOKEN_TEST(a_kernel_is_launched_with_what_it_takes) {
    uint32_t word = 0;
    expect("accepted", "many_barriers", {{1}, 32}, 0, std::vector<uint32_t>(32).data());
    expect("there is no kernel nothing", "nothing", {{1}, 32});
    expect("takes the parameters ip", "many_barriers", {{1}, 32}, 0u, &word);
    expect("takes the parameters ip", "many_barriers", {{1}, 32}, 0);
    expect("33 threads", "many_barriers", {{1}, 33}, 0, &word);
    expect("1056 threads", "many_barriers", {{1}, 1056}, 0, &word);
    expect("0 threads", "many_barriers", {{1}, 0}, 0, &word);
    expect("empty grid", "many_barriers", {{0}, 32}, 0, &word);
    expect("too large", "many_barriers", {{1, 65536}, 32}, 0, &word);
    expect("dynamic shared memory", "many_barriers", {{1}, 32, 1 << 20}, 0, &word);
}

FREETOKEN_TEST(shuffles_are_permutations) {
    for (const uint32_t count : {1u, 2u, 3u, 12u, 32u, 1000u}) {
        for (uint64_t random : {uint64_t{0}, uint64_t{0x123456789ABCDEF0}, ~uint64_t{0}}) {
            const sim::Shuffle shuffle(count, random);
            std::vector<uint32_t> walked, indexed;
            uint32_t number = shuffle.first();
            for (uint32_t i = 0; i < count; ++i, number = shuffle.after(number)) {
                walked.push_back(number);
                indexed.push_back(shuffle[i]);
            }
            CHECK(each_comes(walked, count, 1) && walked == indexed, "%u", count);
        }
    }
}

#ifndef FREETOKEN_SIM_THREADS  // real threads take the orders that they take, and end the program where they break a
                               // rule

namespace {

// The order in which threads ran.
std::vector<uint32_t> order_of(const char* kernel, uint64_t seed, Shape shape, size_t passes) {
    Emulator emulator(1, seed);
    std::vector<uint32_t> order(shape.grid.x * shape.block * passes, ~0u);
    uint32_t next = 0;
    emulator.launch(kernel, shape, &next, order.data());
    return order;
}

}  // namespace

FREETOKEN_TEST(orders_follow_the_seed) {
    for (const char* kernel : {"arrivals", "arrivals_between_barriers"}) {
        const size_t passes = std::strcmp(kernel, "arrivals") == 0 ? 1 : 2;
        std::set<std::vector<uint32_t>> orders;
        for (uint64_t seed = 0; seed < 20; ++seed) {
            const auto order = order_of(kernel, seed, {{4}, 128}, passes);
            CHECK(each_comes(order, 4 * 128, passes), "%s with seed %llu", kernel,
                  static_cast<unsigned long long>(seed));
            CHECK(order == order_of(kernel, seed, {{4}, 128}, passes), "seed %llu",
                  static_cast<unsigned long long>(seed));
            orders.insert(order);
        }
        CHECK(orders.size() == 20, "%s: %zu orders", kernel, orders.size());
    }
    const auto order = order_of("arrivals_between_barriers", 1, {{1}, 256}, 2);
    CHECK(!std::equal(order.begin(), order.begin() + 256, order.begin() + 256), "the same order after a barrier");
}

FREETOKEN_TEST(a_missing_barrier_shows) {
    int wrong = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Emulator emulator(1, seed);
        const auto x = counting(256);
        uint32_t sum = 0;
        emulator.launch("sum_row_unguarded", {{1}, 256, 1024}, x.data(), &sum);
        wrong += sum != 256 * 257 / 2;
    }
    CHECK(wrong == 20, "%d of 20 sums are wrong", wrong);
}

FREETOKEN_TEST(divergent_threads_are_refused) {
    expect("accepted", "diverge", {{1}, 64}, 4);
    expect("is divergent: of one warp some threads come to", "diverge", {{1}, 64}, 0);
    expect("some warps end before a __syncthreads", "diverge", {{1}, 64}, 1);
    expect("a vote", "diverge", {{1}, 64}, 2);
    expect("of some lanes only", "diverge", {{1}, 64}, 3);
}

FREETOKEN_TEST(an_emulator_goes_on_after_a_failure) {
    Emulator emulator(2);
    for (int run = 0; run < 3; ++run) {
        bool refused = false;
        try {
            emulator.launch("diverge", {{3}, 64}, 1);
        } catch (const sim::KernelError&) {
            refused = true;
        }
        CHECK(refused, "accepted");
        const auto x = counting(64);
        uint32_t sum = 0;
        emulator.launch("sum_row", {{1}, 64}, x.data(), &sum);
        CHECK(sum == 64 * 65 / 2, "%u", sum);
    }
}

FREETOKEN_TEST(flat_kernels_have_nothing_to_wait_for) {
    expect("is registered as flat and has a barrier", "flat_with_a_barrier", {{1}, 32}, 0);
}

FREETOKEN_TEST(shared_memory_is_nonsense_first_and_ends_where_it_ends) {
    std::vector<uint32_t> out(2 * 64);
    expect("accepted", "read_fresh_shared", {{2}, 64}, out.data());
    CHECK(std::all_of(out.begin(), out.end(), [](uint32_t v) { return v == 0xFFA5A5A5u; }), "%x", out[0]);
    expect("accepted", "write_beyond_shared", {{1}, 32}, 0);
    expect("wrote beyond the end of a shared array", "write_beyond_shared", {{1}, 32}, 1);
    expect("65536 bytes of static shared memory", "take_much_shared", {{1}, 32});
}

#endif

FREETOKEN_TEST(memory_is_mapped_from_the_first_byte) {
    constexpr size_t kPage = 4096;
    sim::AddressRange range(1 << 20);
    range.map(4 * kPage);
    std::memset(range.data(), 7, 4 * kPage);
    range.map(2 * kPage);
    range.map(8 * kPage);
    CHECK(range.mapped() == 8 * kPage && range.bytes() == 1 << 20, "%zu", range.mapped());
    for (size_t i = 0; i < 8 * kPage; ++i) CHECK(range.data()[i] == (i < 2 * kPage ? 7 : 0), "byte %zu", i);
    bool refused = false;
    try {
        range.map((1 << 20) + kPage);
    } catch (const std::bad_alloc&) {
        refused = true;
    }
    CHECK(refused && range.mapped() == 8 * kPage, "%zu", range.mapped());
}

FREETOKEN_TEST(a_word_is_waited_for) {
    uint32_t word = 0;
    CHECK(!sim::wait_word(&word, 3, 0.01), "nobody wrote it");
    uint32_t message = 0;
    std::thread writer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        message = 42;
        sim::store_word(&word, 3);
    });
    CHECK(sim::wait_word(&word, 3, 10.0) && message == 42, "%u", message);
    writer.join();
}

}  // namespace freetoken::test

// `--race` launches a kernel that lacks its barriers, for a sanitizer to find.
int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "--race") == 0) {
        const auto x = freetoken::test::counting(256);
        uint32_t sum = 0;
        freetoken::sim::Emulator().launch("sum_row_unguarded", {{1}, 256, 1024}, x.data(), &sum);
        return 0;
    }
    return freetoken::test::run_tests(argc, argv);
}
