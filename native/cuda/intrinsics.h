// What the device does by single instructions that C++ has no word for; each with its emulated twin. The only inline
// PTX there is lies here.
#pragma once

#include <cstdint>

#ifdef FREETOKEN_EMULATION
#include <cstring>
#include <ctime>
#endif

namespace freetoken {

// --- memory

// Sixteen bytes that are read once and that nobody writes during the kernel, in device memory or in mapped memory of
// the host. 16-byte aligned.
static inline uint4 load_stream(const void* address) {
#ifdef FREETOKEN_EMULATION
    return *static_cast<const uint4*>(address);
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
#endif
}

// The same for four and eight bytes, aligned to their size.
static inline uint32_t load_stream_word(const void* address) {
#ifdef FREETOKEN_EMULATION
    return *static_cast<const uint32_t*>(address);
#else
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
#endif
}
static inline uint2 load_stream_pair(const void* address) {
#ifdef FREETOKEN_EMULATION
    return *static_cast<const uint2*>(address);
#else
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
#endif
}

// Sixteen bytes through the ordinary caches. 16-byte aligned.
static inline uint4 load_vector(const void* address) {
    return *static_cast<const uint4*>(address);
}
static inline void store_vector(void* address, uint4 v) {
    *static_cast<uint4*>(address) = v;
}

// What this thread wrote is seen by the host, and by the other kernels, before what it writes from here on.
static inline void fence_system() {
    __threadfence_system();
}

// Nanoseconds since some moment; steps of up to a microsecond.
static inline uint64_t global_timer_ns() {
#ifdef FREETOKEN_EMULATION
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#else
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
#endif
}

// --- numbers and bytes

// Byte i of the result is the byte (selector >> 4i & 7) of the eight bytes of `low` and `high`; where bit 3 of that
// nibble is set, that byte's sign bit eight times. __byte_perm does not promise the latter.
static inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef FREETOKEN_EMULATION
    return __byte_perm(low, high, selector);
#else
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(selector));
    return v;
#endif
}

// The same of constant bytes: a table. Emulated by the answers to every two nibbles.
template <uint32_t Low, uint32_t High>
static inline uint32_t look_up_bytes(uint32_t selector) {
#ifdef FREETOKEN_EMULATION
    struct Answers {
        uint16_t of[256];
        constexpr Answers() : of() {
            for (uint32_t nibbles = 0; nibbles < 256; ++nibbles)
                of[nibbles] = static_cast<uint16_t>(__byte_perm(Low, High, nibbles));
        }
    };
    static constexpr Answers answers;
    return answers.of[selector & 255u] | uint32_t{answers.of[selector >> 8 & 255u]} << 16;
#else
    return permute_bytes(Low, High, selector);
#endif
}

// sum plus the products of N words of four signed bytes each.
template <int N>
static inline int dot_words(const uint32_t (&a)[N], const uint32_t (&b)[N], int sum) {
#ifdef FREETOKEN_EMULATION
    int8_t x[4 * N], y[4 * N];
    std::memcpy(x, a, sizeof x);
    std::memcpy(y, b, sizeof y);
    for (int i = 0; i < 4 * N; ++i) sum += x[i] * y[i];
#else
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __dp4a(static_cast<int>(a[i]), static_cast<int>(b[i]), sum);
#endif
    return sum;
}

// The value of a binary16.
static inline float half_value(uint32_t bits) {
#ifdef FREETOKEN_EMULATION
    return half_to_float(static_cast<uint16_t>(bits));
#else
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(static_cast<uint16_t>(bits)));
    return v;
#endif
}

// --- tensor cores
//
// d[16][8] += a[16][32] b[32][8], signed bytes into int32, by all lanes of a warp; two of them, with the same a. With
// g = lane / 4 and t = lane % 4, byte i of a register being bits 8i .. 8i+7:
//     a[0]: row g,     k = 4t + i        a[1]: row g + 8, k = 4t + i
//     a[2]: row g,     k = 4t + i + 16   a[3]: row g + 8, k = 4t + i + 16
//     b[0]: column g,  k = 4t + i        b[1]: column g,  k = 4t + i + 16
//     d[0], d[1]: row g, columns 2t and 2t + 1           d[2], d[3]: row g + 8, the same columns

#ifndef FREETOKEN_EMULATION
static inline void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

static inline void mma_s8_twice(int32_t (&first)[4], int32_t (&second)[4], const uint32_t (&a)[4],
                                const uint32_t (&first_b)[2], const uint32_t (&second_b)[2]) {
#ifdef FREETOKEN_EMULATION
    const uint32_t words[8] = {a[0], a[1], a[2], a[3], first_b[0], first_b[1], second_b[0], second_b[1]};
    const uint32_t* products = sim::exchange(sim::Stop::matrix, 0xFFFFFFFFu, words, 8)[threadIdx.x % 32];
    for (int i = 0; i < 4; ++i) {
        first[i] += static_cast<int32_t>(products[i]);
        second[i] += static_cast<int32_t>(products[4 + i]);
    }
#else
    mma_s8(first, a, first_b);
    mma_s8(second, a, second_b);
#endif
}

}  // namespace freetoken
