// Kernels that the tests of the emulator launch: each does one thing that the emulation has to get right, or wrong.
#pragma once

#include "sim/emulation.h"

// after the language that it is written in
#include "cuda/device.h"

namespace freetoken {

extern "C" __global__ void scale_by_thread(const float* x, int n, float factor, float* y) {
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

// The same in dynamic shared memory, without the barriers.
extern "C" __global__ void sum_row_unguarded(const uint32_t* x, uint32_t* sums) {
    DYNAMIC_SHARED(uint32_t, part);
    part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (unsigned width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_warp(const uint32_t* x, uint32_t* sums) {
    uint32_t sum = x[threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
}

// Every other collective once; eight words a thread.
extern "C" __global__ void collectives(const uint64_t* x, uint64_t* out) {
    const uint64_t mine = x[threadIdx.x];
    uint64_t* row = out + 8 * threadIdx.x;
    row[0] = __shfl_sync(kAllLanes, mine, 5);
    row[1] = __shfl_up_sync(kAllLanes, mine, 3);
    row[2] = __shfl_down_sync(kAllLanes, mine, 3);
    row[3] = __ballot_sync(kAllLanes, mine % 3 == 0);
    row[4] = static_cast<uint64_t>(__any_sync(kAllLanes, mine == 1));
    row[5] = static_cast<uint64_t>(__all_sync(kAllLanes, mine < 1000));
    row[6] = static_cast<uint64_t>(__syncthreads_count(mine % 2 == 0));
    row[7] = static_cast<uint64_t>(__syncthreads_or(mine == 7));
    __syncwarp();
}

// d[16][8] = 1 + a[16][32] b[32][8] of both b, which lie column by column.
extern "C" __global__ void multiply(const uint8_t* a, const uint8_t* b, int32_t* d) {
    const int g = static_cast<int>(threadIdx.x) / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    const auto word = [](const uint8_t* row, int k) { return *reinterpret_cast<const uint32_t*>(row + k); };
    const uint8_t* other = b + 8 * 32;
    const uint32_t left[4] = {word(a + 32 * g, 4 * t), word(a + 32 * (g + 8), 4 * t), word(a + 32 * g, 4 * t + 16),
                              word(a + 32 * (g + 8), 4 * t + 16)};
    const uint32_t right[2] = {word(b + 32 * g, 4 * t), word(b + 32 * g, 4 * t + 16)};
    const uint32_t other_right[2] = {word(other + 32 * g, 4 * t), word(other + 32 * g, 4 * t + 16)};
    int32_t sums[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    mma_s8_twice(sums[0], sums[1], left, right, other_right);
    for (int product = 0; product < 2; ++product)
        for (int i = 0; i < 4; ++i) d[128 * product + 8 * (g + i / 2 * 8) + 2 * t + i % 2] = sums[product][i];
}

// Counts values by their last four bits: in shared memory, then in global memory.
extern "C" __global__ void count_values(const uint32_t* x, uint32_t* counts) {
    SHARED(uint32_t, mine, 16);
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&mine[x[blockIdx.x * blockDim.x + threadIdx.x] % 16], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

// The order in which threads came.
extern "C" __global__ void arrivals(uint32_t* next, uint32_t* order) {
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

// A second kernel of the same kind, whose threads are fibers.
extern "C" __global__ void arrivals_between_barriers(uint32_t* next, uint32_t* order) {
    __syncthreads();
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

// `kind` 0: some threads of a warp leave before a barrier; 1: some warps do; 2: lanes meet different collectives;
// 3: a collective of some lanes.
extern "C" __global__ void diverge(int kind) {
    if (kind == 0 && threadIdx.x == 3) return;
    if (kind == 1 && threadIdx.x >= 32) return;
    if (kind == 2 && threadIdx.x % 2 == 0) __ballot_sync(kAllLanes, 1);
    if (kind == 2 && threadIdx.x % 2 == 1) __shfl_sync(kAllLanes, 1, 0);
    if (kind == 3 && threadIdx.x < 16) __syncwarp(0xFFFFu);
    __syncthreads();
}

extern "C" __global__ void read_fresh_shared(uint32_t* out) {
    SHARED(uint32_t, values, 64);
    out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 0;
}

extern "C" __global__ void write_beyond_shared(int past) {
    SHARED(uint32_t, values, 32);
    uint32_t* const first = values;
    first[static_cast<int>(threadIdx.x) + past] = 1;
}

extern "C" __global__ void take_much_shared() {
    SHARED(uint8_t, first, 32 * 1024);
    SHARED(uint8_t, second, 32 * 1024);
    first[threadIdx.x] = second[threadIdx.x] = 0;
}

// Registered as flat, which is wrong.
extern "C" __global__ void flat_with_a_barrier(int) {
    __syncthreads();
}

extern "C" __global__ void many_barriers(int count, uint32_t* out) {
    uint32_t sum = threadIdx.x;
    for (int i = 0; i < count; ++i) {
        __syncthreads();
        sum = sum * 5 + 1;
    }
    out[threadIdx.x] = sum;
}

}  // namespace freetoken

SIM_KERNEL_FLAT(scale_by_thread);
SIM_KERNEL_FLAT(arrivals);
SIM_KERNEL_FLAT(flat_with_a_barrier);
SIM_KERNEL(sum_row);
SIM_KERNEL(sum_row_unguarded);
SIM_KERNEL(sum_warp);
SIM_KERNEL(collectives);
SIM_KERNEL(multiply);
SIM_KERNEL(count_values);
SIM_KERNEL(arrivals_between_barriers);
SIM_KERNEL(diverge);
SIM_KERNEL(read_fresh_shared);
SIM_KERNEL(write_beyond_shared);
SIM_KERNEL(take_much_shared);
SIM_KERNEL(many_barriers);
