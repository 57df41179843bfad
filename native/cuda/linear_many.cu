// A dense matrix times the rows of a step: for many tokens (linear.cu for few). tile_product.h says how. Blocks whose
// tiles or tokens are not there end at once.
#include "cuda/tile_product.h"

namespace freetoken {

// As linear. Blocks of 128 threads; the grid covers pairs of tiles and, along y, groups of 32 tokens.
template <Codec C>
static inline void linear_many(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x, int x_bytes,
                               const int32_t* rows, const float* bias, float scale, float* y, int y_stride) {
    const int tile = static_cast<int>(blockIdx.x) * kTilesOfBlock;
    const int tiles = min(kTilesOfBlock, static_cast<int>(tile_count(m_rows)) - tile);
    const int first = static_cast<int>(blockIdx.y) * kGroupTokens;
    const int tokens = min(kGroupTokens, *rows - first);
    if (tiles <= 0 || tokens <= 0) return;
    const auto row_at = [=](int token) {
        return static_cast<uint32_t>(first + token) * static_cast<uint32_t>(x_bytes);
    };
    const auto write = [=](int row, int token, float value) {
        const int own = tile * kTileRows + row;
        if (own >= m_rows) return;
        y[static_cast<int64_t>(first + token) * y_stride + own] =
            canonical(scale * (bias != nullptr ? value + bias[own] : value));
    };
    multiply_tiles<C>(matrix + tile * tile_bytes(C, cols), tiles, cols, x, tokens, row_at, write);
}

#define LINEAR_MANY(codec)                                                                                           \
    extern "C" __global__ void linear_many_##codec(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x,    \
                                                   int x_bytes, const int32_t* rows, const float* bias, float scale, \
                                                   float* y, int y_stride) {                                         \
        linear_many<Codec::codec>(matrix, m_rows, cols, x, x_bytes, rows, bias, scale, y, y_stride);                 \
    }
FOR_EACH_CODEC(LINEAR_MANY)
#undef LINEAR_MANY

}  // namespace freetoken
