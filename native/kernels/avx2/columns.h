// Columns of sixteen float weights side by side, multiplied with f32 activations.
#pragma once

#include "core/codec.h"
#include "kernels/avx2/rows.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {

// Sums of a group of tokens: a token's accumulator for each k mod 4.
template <int T>
using ColumnSums = Rows[T][kFloatColumns];

template <Codec C>
Rows load_column(const uint8_t* p) {
    if constexpr (C == Codec::f32) return load_rows(p);
    if constexpr (C == Codec::f16) return halves(p);
    if constexpr (C == Codec::bf16) return bfloats(p);
}

// Adds `count` columns, a multiple of four that starts at a multiple of four, to accumulators first .. first + Width of
// every token. x[t] is the token's value of the first column.
template <Codec C, int T, int Width, Fetch F>
[[gnu::always_inline]] static inline void add_columns(const uint8_t* columns, const uint8_t* const (&x)[T], int count,
                                                      int first, ColumnSums<T>& sums) {
    constexpr int kColumnBytes = codec_info(C).code_bytes * kTileRows;
    Rows acc[T][Width];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) acc[t][s] = sums[t][first + s];
    const size_t end = static_cast<size_t>(count) * sizeof(float);
    for (size_t offset = 0; offset < end;
         offset += kFloatColumns * sizeof(float), columns += kFloatColumns * kColumnBytes) {
        fetch_ahead<F>(columns, kFloatColumns * kColumnBytes);
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) {
            const Rows column = load_column<C>(columns + (first + s) * kColumnBytes);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const uint8_t* value = x[t] + offset + static_cast<size_t>(first + s) * sizeof(float);
                acc[t][s] = fma(column, broadcast(load_float(value)), acc[t][s]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int s = 0; s < Width; ++s) sums[t][first + s] = acc[t][s];
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
static inline Rows total(const Rows (&sums)[kFloatColumns]) {
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace freetoken::avx2
