// CUDA C++ for an ordinary compiler: what a .cu file needs of the language, emulated. Included before the .cu file.
// native/sim/block.h says how blocks run; docs/design.md what this can show and what it cannot.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sim/block.h"
#include "sim/registry.h"

#define FREETOKEN_EMULATION 1

// Hidden: a kernel called `fill` must not meet a function of that name in another library.
#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)

using freetoken::sim::blockDim;
using freetoken::sim::blockIdx;
using freetoken::sim::gridDim;
using freetoken::sim::threadIdx;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

using std::max;
using std::min;

static inline void __syncthreads() {
    freetoken::sim::barrier();
}
static inline int __syncthreads_count(int predicate) {
    return freetoken::sim::barrier_count(predicate != 0);
}
static inline int __syncthreads_or(int predicate) {
    return freetoken::sim::barrier_count(predicate != 0) != 0;
}
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    freetoken::sim::exchange(freetoken::sim::Stop::syncwarp, mask, nullptr, 0);
}

// ThreadSanitizer does not know fences; the words that are ordered by them are atomic here.
#ifdef __SANITIZE_THREAD__
#define FREETOKEN_FENCE() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#else
#define FREETOKEN_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
static inline void __threadfence() {
    FREETOKEN_FENCE();
}
static inline void __threadfence_block() {
    FREETOKEN_FENCE();
}
static inline void __threadfence_system() {
    FREETOKEN_FENCE();
}
#undef FREETOKEN_FENCE

// --- warp collectives, of all 32 lanes

namespace freetoken::sim {

template <class T>
static inline T shuffled(unsigned mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    uint32_t words[sizeof(T) / 4];
    std::memcpy(words, &value, sizeof value);
    const Words* lanes = exchange(Stop::shuffle, mask, words, sizeof(T) / 4);
    T result;
    std::memcpy(&result, lanes[source], sizeof result);
    return result;
}

static inline int lane() {
    return static_cast<int>(threadIdx.x & 31u);
}

}  // namespace freetoken::sim

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source) {
    return freetoken::sim::shuffled(mask, value, source & 31);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return freetoken::sim::shuffled(mask, value, (freetoken::sim::lane() ^ distance) & 31);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
    const int source = freetoken::sim::lane() - static_cast<int>(distance);
    return freetoken::sim::shuffled(mask, value, source < 0 ? freetoken::sim::lane() : source);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
    const int source = freetoken::sim::lane() + static_cast<int>(distance);
    return freetoken::sim::shuffled(mask, value, source > 31 ? freetoken::sim::lane() : source);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint32_t word = predicate != 0;
    const freetoken::sim::Words* lanes = freetoken::sim::exchange(freetoken::sim::Stop::ballot, mask, &word, 1);
    unsigned ballot = 0;
    for (unsigned l = 0; l < 32; ++l) ballot |= lanes[l][0] << l;
    return ballot;
}
static inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) == 0xFFFFFFFFu;
}

// --- atomics, relaxed as on the device

#define FREETOKEN_ATOMIC(name, operation)                         \
    template <class T>                                            \
    static inline T name(T* address, decltype(T{} + T{}) value) { \
        freetoken::sim::count_atomic(address);                    \
        return operation(address, T(value), __ATOMIC_RELAXED);    \
    }
FREETOKEN_ATOMIC(atomicAdd, __atomic_fetch_add)
FREETOKEN_ATOMIC(atomicSub, __atomic_fetch_sub)
FREETOKEN_ATOMIC(atomicAnd, __atomic_fetch_and)
FREETOKEN_ATOMIC(atomicOr, __atomic_fetch_or)
FREETOKEN_ATOMIC(atomicXor, __atomic_fetch_xor)
FREETOKEN_ATOMIC(atomicExch, __atomic_exchange_n)
#undef FREETOKEN_ATOMIC

template <class T>
static inline T atomicCAS(T* address, decltype(T{} + T{}) expected, decltype(T{} + T{}) value) {
    freetoken::sim::count_atomic(address);
    T seen = T(expected);
    __atomic_compare_exchange_n(address, &seen, T(value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return seen;
}
template <class T>
static inline T atomicMax(T* address, decltype(T{} + T{}) value) {
    freetoken::sim::count_atomic(address);
    T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (seen < T(value) &&
           !__atomic_compare_exchange_n(address, &seen, T(value), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}
template <class T>
static inline T atomicMin(T* address, decltype(T{} + T{}) value) {
    freetoken::sim::count_atomic(address);
    T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (T(value) < seen &&
           !__atomic_compare_exchange_n(address, &seen, T(value), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

// --- arithmetic

static inline float __fsqrt_rn(float x) {
    return __builtin_sqrtf(x);
}

// --- integers and bits

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
// Byte i of the result is byte (selector >> 4 i & 7) of the eight bytes of low and high; bit 3 spreads its sign.
static constexpr unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = uint64_t{high} << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned choice = selector >> (4 * i);
        const auto byte = static_cast<int8_t>(bytes >> (choice & 7u) * 8);
        result |= static_cast<unsigned>(static_cast<uint8_t>(byte >> (choice >> 3 & 1u) * 7)) << (8 * i);
    }
    return result;
}
// Sums of four products of signed or unsigned bytes.
static inline int __dp4a(int a, int b, int sum) {
    int8_t x[4], y[4];
    std::memcpy(x, &a, 4);
    std::memcpy(y, &b, 4);
    return static_cast<int>(static_cast<unsigned>(sum) +
                            static_cast<unsigned>(x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]));
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    uint8_t x[4], y[4];
    std::memcpy(x, &a, 4);
    std::memcpy(y, &b, 4);
    return sum + static_cast<unsigned>(x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]);
}
