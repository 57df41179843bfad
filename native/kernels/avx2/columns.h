// Columns of sixteen float weights side by side, multiplied with f32 activations.
#pragma once

#include "core/codec.h"
#include "kernels/avx2/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {

// Sums of a group of tokens: a token's accumulator for each k mod 4, two sides of eight rows each.
template <int T>
using ColumnSums = __m256[T][kFloatColumns][2];

template <Codec C>
__m256 load_half_column(const uint8_t* p) {
    if constexpr (C == Codec::f32) {
        return _mm256_castsi256_ps(load256(p));
    } else if constexpr (C == Codec::f16) {
        return _mm256_cvtph_ps(load128(p));
    } else {
        static_assert(C == Codec::bf16);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
}

// Adds `count` columns, a multiple of four that starts at a multiple of four, to accumulators first .. first + Width of
// every token. x[t] is the token's value of the first column.
template <Codec C, int T, int Width, Fetch F>
[[gnu::always_inline]] static inline void add_columns(const uint8_t* columns, const uint8_t* const (&x)[T], int count,
                                                      int first, ColumnSums<T>& sums) {
    constexpr int kColumnBytes = codec_info(C).code_bytes * kTileRows;
    __m256 acc[T][Width][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) {
            acc[t][s][0] = sums[t][first + s][0];
            acc[t][s][1] = sums[t][first + s][1];
        }
    const size_t end = static_cast<size_t>(count) * sizeof(float);
    for (size_t offset = 0; offset < end;
         offset += kFloatColumns * sizeof(float), columns += kFloatColumns * kColumnBytes) {
        fetch_ahead<F>(columns, kFloatColumns * kColumnBytes);
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) {
            const uint8_t* column = columns + (first + s) * kColumnBytes;
            const __m256 upper = load_half_column<C>(column);
            const __m256 lower = load_half_column<C>(column + kColumnBytes / 2);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m256 value = broadcast_float(x[t] + offset + static_cast<size_t>(first + s) * sizeof(float));
                acc[t][s][0] = _mm256_fmadd_ps(upper, value, acc[t][s][0]);
                acc[t][s][1] = _mm256_fmadd_ps(lower, value, acc[t][s][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) {
            sums[t][first + s][0] = acc[t][s][0];
            sums[t][first + s][1] = acc[t][s][1];
        }
}

// Sixteen registers do not hold four accumulators of several tokens. One token takes all four at once and reads the
// columns as a stream; a group takes them in turn, so its columns should be few enough to be found in cache again.
template <Codec C, int T, Fetch F>
[[gnu::always_inline]] static inline void add_columns(const uint8_t* columns, const uint8_t* const (&x)[T], int count,
                                                      ColumnSums<T>& sums) {
    constexpr int kWidth = T == 1 ? 4 : T <= 3 ? 2 : 1;
    add_columns<C, T, kWidth, F>(columns, x, count, 0, sums);
#pragma GCC unroll 4
    for (int first = kWidth; first < kFloatColumns; first += kWidth)
        add_columns<C, T, kWidth, Fetch::none>(columns, x, count, first, sums);
}

// The sum of a token's four accumulators.
static inline __m256 total(const __m256 (&sums)[kFloatColumns][2], int side) {
    return _mm256_add_ps(_mm256_add_ps(sums[0][side], sums[1][side]), _mm256_add_ps(sums[2][side], sums[3][side]));
}

}  // namespace freetoken::avx2
