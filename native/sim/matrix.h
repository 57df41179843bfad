// The tensor cores of a warp: two products with one left side, which all lanes hold together.
#pragma once

#include "sim/block.h"

namespace freetoken::sim {

// d[16][8] = a[16][32] b[32][8] twice, of signed bytes. A lane's words are a[0..3], then b[0..1] of each product, laid
// out as cuda/intrinsics.h says; they become d[0..3] of each product.
void multiply_matrices(Words* lanes);

}  // namespace freetoken::sim
