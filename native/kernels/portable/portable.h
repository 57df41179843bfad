// The parts of the scalar table.
#pragma once

#include "kernels/kernels.h"

namespace freetoken::portable {

void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y, size_t ldy);

}  // namespace freetoken::portable
