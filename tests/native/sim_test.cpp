// The emulator of kernels: what they compute, what they are refused, and that orders change.
#include "sim/emulation.h"
//
#include "cuda/device.h"

#include <cstdio>
#include <numeric>
#include <vector>

#include "check.h"
#include "sim/emulator.h"

namespace freetoken {

extern "C" __global__ void scale_rows(const float* x, int n, float factor, float* y) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = factor * x[i];
}

// The sum of a row a block, by a tree in shared memory.
extern "C" __global__ void sum_row(const uint32_t* x, uint32_t* sums) {
    SHARED(uint32_t, part, 1024);
    part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (unsigned width = blockDim.x / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_warp(const uint32_t* x, uint32_t* sums) {
    uint32_t sum = x[threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
}

}  // namespace freetoken

SIM_KERNEL_FLAT(scale_rows);
SIM_KERNEL(sum_row);
SIM_KERNEL(sum_warp);

namespace freetoken::test {
namespace {

using sim::Emulator;

std::vector<uint32_t> counting(size_t n) {
    std::vector<uint32_t> values(n);
    std::iota(values.begin(), values.end(), 1u);
    return values;
}

}  // namespace

FREETOKEN_TEST(a_flat_kernel_touches_every_thread_of_every_block) {
    Emulator emulator(2);
    std::vector<float> x(1000), y(1024, -1.0f);
    std::iota(x.begin(), x.end(), 0.0f);
    emulator.launch("scale_rows", {{8}, 128}, x.data(), 1000, 2.0f, y.data());
    for (size_t i = 0; i < y.size(); ++i)
        CHECK(y[i] == (i < 1000 ? 2.0f * static_cast<float>(i) : -1.0f), "value %zu is %g", i, y[i]);
}

FREETOKEN_TEST(barriers_hold_threads_back) {
    for (const unsigned threads : {32u, 256u, 1024u}) {
        Emulator emulator(2, threads);
        const auto x = counting(4 * threads);
        std::vector<uint32_t> sums(4);
        const auto counters = emulator.launch("sum_row", {{4}, threads}, x.data(), sums.data());
        for (unsigned b = 0; b < 4; ++b) {
            const uint32_t wanted = threads * (2 * b * threads + threads + 1) / 2;
            CHECK(sums[b] == wanted, "%u threads, block %u: %u instead of %u", threads, b, sums[b], wanted);
        }
        CHECK(counters.barriers == static_cast<uint64_t>(__builtin_ctz(threads)), "%llu",
              static_cast<unsigned long long>(counters.barriers));
    }
}

FREETOKEN_TEST(shuffles_exchange_within_a_warp) {
    Emulator emulator;
    const auto x = counting(128);
    std::vector<uint32_t> sums(4);
    const auto counters = emulator.launch("sum_warp", {{1}, 128}, x.data(), sums.data());
    for (unsigned w = 0; w < 4; ++w) CHECK(sums[w] == 16 * (64 * w + 33), "warp %u: %u", w, sums[w]);
    CHECK(counters.collectives == 4 * 5, "%llu", static_cast<unsigned long long>(counters.collectives));
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
