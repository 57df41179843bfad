// A matrix of its own for every head: the heads' matrices are stacked by rows, and a head may begin within a tile. A
// warp a tile, token and head.
#include "cuda/row_pair.h"

namespace freetoken {

// y[t][h] = M[h] x[t][h], t < *rows. A head has `m_rows` rows; its input lies x_head_bytes behind that of the head
// before it, its output y_head_stride values. The grid covers tiles, tokens and heads: tiles from that in which the
// head begins.
template <Codec C>
static inline void head_linear(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x, int x_bytes,
                               int x_head_bytes, const int32_t* rows, float* y, int y_stride, int y_head_stride) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int token = static_cast<int>(blockIdx.y);
    const int head = static_cast<int>(blockIdx.z);
    const int first = head * m_rows;
    const int tile = first / kTileRows + static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
    if (token >= *rows || tile * kTileRows >= first + m_rows) return;
    const uint8_t* from = x + static_cast<int64_t>(token) * x_bytes + static_cast<int64_t>(head) * x_head_bytes;
    const RowPair sum = multiply_pair<C>(matrix + tile * tile_bytes(C, cols), cols, from, lane);
    if (lane >= kPairsOfTile) return;
    float* to = y + static_cast<int64_t>(token) * y_stride + static_cast<int64_t>(head) * y_head_stride;
    for (int i = 0; i < 2; ++i) {
        const int row = tile * kTileRows + 2 * lane + i - first;
        if (row >= 0 && row < m_rows) to[row] = i == 0 ? sum.first : sum.second;
    }
}

#define HEAD_LINEAR(codec)                                                                                           \
    extern "C" __global__ void head_linear_##codec(const uint8_t* matrix, int m_rows, int cols, const uint8_t* x,    \
                                                   int x_bytes, int x_head_bytes, const int32_t* rows, float* y,     \
                                                   int y_stride, int y_head_stride) {                                \
        head_linear<Codec::codec>(matrix, m_rows, cols, x, x_bytes, x_head_bytes, rows, y, y_stride, y_head_stride); \
    }
FOR_EACH_CODEC(HEAD_LINEAR)
#undef HEAD_LINEAR

}  // namespace freetoken
