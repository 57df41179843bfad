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

// A word that the host or another kernel writes or reads meanwhile: acquire and release in the scope of the system.
static inline uint32_t load_system(const uint32_t* address) {
#ifdef FREETOKEN_EMULATION
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
#else
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
#endif
}
static inline void store_system(uint32_t* address, uint32_t v) {
#ifdef FREETOKEN_EMULATION
    __atomic_store_n(address, v, __ATOMIC_RELEASE);
#else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
#endif
}

// A word that other blocks of this kernel write meanwhile: no order, but never an old register.
static inline uint32_t load_volatile(const uint32_t* address) {
#ifdef FREETOKEN_EMULATION
    return __atomic_load_n(address, __ATOMIC_RELAXED);
#else
    return *const_cast<const volatile uint32_t*>(address);
#endif
}
static inline void store_volatile(uint32_t* address, uint32_t v) {
#ifdef FREETOKEN_EMULATION
    __atomic_store_n(address, v, __ATOMIC_RELAXED);
#else
    *const_cast<volatile uint32_t*>(address) = v;
#endif
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

// --- tensor cores: d[16][8] += a[16][K] b[K][8], signed bytes into int32, by all lanes of a warp
//
// With g = lane / 4 and t = lane % 4, byte i of a register being bits 8i .. 8i+7:
//     a[0]: row g,     k = 4t + i        a[1]: row g + 8, k = 4t + i
//     a[2]: row g,     k = 4t + i + 16   a[3]: row g + 8, k = 4t + i + 16        (K = 32 only)
//     b[0]: column g,  k = 4t + i        b[1]: column g,  k = 4t + i + 16        (K = 32 only)
//     d[0], d[1]: row g, columns 2t and 2t + 1           d[2], d[3]: row g + 8, the same columns

#ifdef FREETOKEN_EMULATION
// The registers of all lanes: `halves` runs of 16 along K; words 0 .. 2 halves - 1 are a, then b.
[[gnu::noinline]] static void mma_s8_emulated(int32_t (&d)[4], const sim::Words* lanes, int halves) {
    const unsigned g = threadIdx.x % 32 / 4;
    const unsigned t = threadIdx.x % 4;
    for (int half = 0; half < halves; ++half) {
        for (unsigned quad = 0; quad < 4; ++quad) {
            for (unsigned column = 0; column < 2; ++column) {
                const uint32_t b = lanes[4 * (2 * t + column) + quad][2 * halves + half];
                for (unsigned row = 0; row < 2; ++row) {
                    const uint32_t a = lanes[4 * g + quad][2 * half + row];
                    int32_t& sum = d[2 * row + column];
                    sum = __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
                }
            }
        }
    }
}
#endif

static inline void mma_s8_k32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef FREETOKEN_EMULATION
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    mma_s8_emulated(d, sim::exchange(sim::Stop::matrix, 0xFFFFFFFFu, words, 6), 2);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

static inline void mma_s8_k16(int32_t (&d)[4], const uint32_t (&a)[2], const uint32_t& b) {
#ifdef FREETOKEN_EMULATION
    const uint32_t words[3] = {a[0], a[1], b};
    mma_s8_emulated(d, sim::exchange(sim::Stop::matrix, 0xFFFFFFFFu, words, 3), 1);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
#endif
}

}  // namespace freetoken
