// The parts of the AVX2 table.
#pragma once

#include "kernels/activations.h"
#include "kernels/kernels.h"

namespace freetoken::avx2 {

// AVX2 has no product of four bytes that cannot overflow for 8-bit codes, so these are multiplied as 16-bit values by
// pairs: the whole q of a block, in the order 0 2 1 3, 4 6 5 7, .. in which bytes of weights fall into even and odd.
struct PairedBlock {
    QuantBlock block;
    int16_t pairs[kBlock];
    HalfSums halves;
};
static_assert(sizeof(PairedBlock) == 176);

void integer_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                  size_t ldy);
void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy);
void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy);

}  // namespace freetoken::avx2
