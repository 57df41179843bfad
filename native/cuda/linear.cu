// A dense matrix times the rows of a step: for few tokens (linear_many.cu for more). A warp a tile and token; see
// row_pair.h for how it reads. Every token reads the whole matrix, from the second-level cache where that holds it.
#include "cuda/row_pair.h"

namespace freetoken {

// y[t][r] = scale * (M x[t] + bias), t < *rows. Rows of x lie x_bytes apart, those of y y_stride values. Blocks of
// whole warps, each a tile; the grid covers the tiles and, along y, the tokens.
template <Codec C>
static inline void linear(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x, int x_bytes,
                          const int32_t* rows, const float* bias, float scale, float* y, int y_stride) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int tile = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
    const int token = static_cast<int>(blockIdx.y);
    if (token >= *rows || tile * kTileRows >= m_rows) return;
    const RowPair sum =
        multiply_pair<C>(matrix + tile * tile_bytes(C, cols), cols, x + static_cast<int64_t>(token) * x_bytes, lane);
    if (lane >= kPairsOfTile) return;
    float* to = y + static_cast<int64_t>(token) * y_stride;
    for (int i = 0; i < 2; ++i) {
        const int row = tile * kTileRows + 2 * lane + i;
        if (row >= m_rows) return;
        const float value = i == 0 ? sum.first : sum.second;
        to[row] = canonical(scale * (bias != nullptr ? value + bias[row] : value));
    }
}

#define LINEAR(codec)                                                                                           \
    extern "C" __global__ void linear_##codec(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x,    \
                                              int x_bytes, const int32_t* rows, const float* bias, float scale, \
                                              float* y, int y_stride) {                                         \
        linear<Codec::codec>(matrix, m_rows, cols, x, x_bytes, rows, bias, scale, y, y_stride);                 \
    }
FOR_EACH_CODEC(LINEAR)
#undef LINEAR

}  // namespace freetoken
