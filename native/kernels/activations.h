// The packed form of activations that integer codecs multiply: shared by all kernels, private to them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numerics.h"

namespace freetoken {

// Thirty-two activations: x[k] is about scale * (256 * hi[k] + lo[k]).
// A weight is stored as an unsigned code c = w + Z, so sum(q w) = sum(q c) - Z sum(q); the last term is kept ready, for
// the whole block and, for codecs with a scale every sixteen weights, for its halves.
struct QuantBlock {
    float scale;              // 0 for a zero block, NaN where a value is not finite
    float sum;                // sum of q, exact
    int32_t minus_8_sums;     // -8 * sum: Z of q4_0; twice it is that of q5_0, 16 times that of q8_0
    int32_t minus_12_sums;    // -12 * sum: Z of mxfp4
    int32_t minus_12_first;   // the same of q[0..16): Z of nvfp4
    int32_t minus_12_second;  // and of q[16..32)
    int32_t minus_32_first;   // -32 times the sum of q[0..16): Z of q6_k
    int32_t minus_32_second;
    int8_t hi[kBlock];
    int8_t lo[kBlock];
};
static_assert(sizeof(QuantBlock) == 96);

// Fills in what is kept of the sums of q[0..16) and q[16..32).
static inline void set_sums(QuantBlock& block, int32_t first, int32_t second) {
    block.sum = static_cast<float>(first + second);
    block.minus_8_sums = -8 * (first + second);
    block.minus_12_sums = -12 * (first + second);
    block.minus_12_first = -12 * first;
    block.minus_12_second = -12 * second;
    block.minus_32_first = -32 * first;
    block.minus_32_second = -32 * second;
}

// The sum of q[0..16) or of q[16..32).
static inline int32_t half_sum(const QuantBlock& block, int half) {
    return (half == 0 ? block.minus_32_first : block.minus_32_second) / -32;
}

// The same sums by bytes of q, for vector tables that multiply them as 16-bit values: of the first half and the second.
struct HalfSums {
    int16_t minus_4_hi[2];  // -4 * sum of hi: Z of q3_k
    int16_t minus_4_lo[2];  // -4 * sum of lo
    int16_t hi_16[2];       // the sum of q is 16 times this,
    int16_t lo[2];          // and this
};

static inline HalfSums half_sums(const QuantBlock& block) {
    HalfSums sums;
    for (int half = 0; half < 2; ++half) {
        int hi = 0;
        int lo = 0;
        for (int k = 16 * half; k < 16 * half + 16; ++k) {
            hi += block.hi[k];
            lo += block.lo[k];
        }
        sums.minus_4_hi[half] = static_cast<int16_t>(-4 * hi);
        sums.minus_4_lo[half] = static_cast<int16_t>(-4 * lo);
        sums.hi_16[half] = static_cast<int16_t>(16 * hi);
        sums.lo[half] = static_cast<int16_t>(lo);
    }
    return sums;
}

// Segment boundaries of a row of `blocks` blocks: segment s is [segment_begin(s), segment_begin(s + 1)).
static inline int segment_begin(int segment, int blocks) {
    return static_cast<int>(static_cast<int64_t>(segment) * blocks / 4);
}

static inline size_t round_up_64(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

}  // namespace freetoken
