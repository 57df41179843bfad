// The parts of the AVX-512 table.
#pragma once

#include "kernels/kernels.h"

namespace freetoken::avx512 {

void integer_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                  size_t ldy);
void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy);
void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy);

}  // namespace freetoken::avx512
