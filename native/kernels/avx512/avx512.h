// The parts of the AVX-512 table.
#pragma once

#include "kernels/activations.h"
#include "kernels/kernels.h"

namespace freetoken::avx512 {

// A block of an activation row for integer codecs.
struct SummedBlock {
    QuantBlock block;
    HalfSums halves;
};
static_assert(sizeof(SummedBlock) == 112);

// An activation row for scaled floats: the plain row, then 2^112 times the same, then, in a line of its own, whether
// all of these are finite (a dword, 0 or 1). scaled.cpp says what for.
static constexpr size_t plain_row_bytes(int cols) {
    return (static_cast<size_t>(cols) * sizeof(float) + 63) / 64 * 64;
}
static constexpr size_t scaled_row_bytes(int cols) {
    return 2 * plain_row_bytes(cols) + 64;
}

void integer_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                  size_t ldy);
void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy);
void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy);

}  // namespace freetoken::avx512
