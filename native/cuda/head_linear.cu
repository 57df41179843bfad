// A matrix of its own for every head, or one that was chosen for it: the matrices are stacked by rows, and one may
// begin within a tile. A warp a tile, token and head.
#include "cuda/row_pair.h"

namespace freetoken {

// y[t][h] = M[h] x[t][h], t < *rows; with `ids` the matrix of a head is number ids[t][h]. A matrix has `m_rows` rows;
// the input of a head lies x_head_bytes behind that of the head before it, its output y_head_stride values. The grid
// covers tiles, tokens and heads: tiles from that in which the matrix begins.
template <Codec C>
static inline void head_linear(const uint8_t* matrix, int m_rows, int cols, const int32_t* ids, int ids_stride,
                               const uint8_t* x, int x_bytes, int x_head_bytes, const int32_t* rows, float* y,
                               int y_stride, int y_head_stride) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int token = static_cast<int>(blockIdx.y);
    const int head = static_cast<int>(blockIdx.z);
    if (token >= *rows) return;
    const int first = (ids == nullptr ? head : ids[static_cast<int64_t>(token) * ids_stride + head]) * m_rows;
    const int tile = first / kTileRows + static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
    if (tile * kTileRows >= first + m_rows) return;
    const uint8_t* from = x + static_cast<int64_t>(token) * x_bytes + static_cast<int64_t>(head) * x_head_bytes;
    const RowPair sum = multiply_pair<C>(matrix + tile * tile_bytes(C, cols), cols, from, lane);
    if (lane >= kPairsOfTile) return;
    float* to = y + static_cast<int64_t>(token) * y_stride + static_cast<int64_t>(head) * y_head_stride;
    for (int i = 0; i < 2; ++i) {
        const int row = tile * kTileRows + 2 * lane + i - first;
        if (row >= 0 && row < m_rows) to[row] = i == 0 ? sum.first : sum.second;
    }
}

#define HEAD_LINEAR(codec)                                                                                            \
    extern "C" __global__ void head_linear_##codec(const uint8_t* matrix, int m_rows, int cols, const int32_t* ids,   \
                                                   int ids_stride, const uint8_t* x, int x_bytes, int x_head_bytes,   \
                                                   const int32_t* rows, float* y, int y_stride, int y_head_stride) {  \
        head_linear<Codec::codec>(matrix, m_rows, cols, ids, ids_stride, x, x_bytes, x_head_bytes, rows, y, y_stride, \
                                  y_head_stride);                                                                     \
    }
FOR_EACH_CODEC(HEAD_LINEAR)
#undef HEAD_LINEAR

}  // namespace freetoken
