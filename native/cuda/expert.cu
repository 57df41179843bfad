// A matrix of an expert in its slot times the activations of its token, for every pair of a step: for few pairs an
// expert (expert_many.cu for more). A warp a tile and pair, as linear.cu; warps of pairs that are not theirs end at
// once.
#include "cuda/pairs.h"
#include "cuda/row_pair.h"

namespace freetoken {

// y[pair] = M x, M at `offset` in the pair's slot, where its target matches `which`; the other rows of y are not
// touched. x is row `pair` if per_pair, else that of the token. Blocks of whole warps; the grid covers the tiles and,
// along y, the pairs.
template <Codec C>
static inline void expert(const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int m_rows, int cols,
                          const int32_t* target, int which, int top_k, int per_pair, const uint8_t* x, int x_bytes,
                          const int32_t* rows, float* y, int y_stride) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int tile = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
    const int pair = static_cast<int>(blockIdx.y);
    if (pair >= *rows * top_k || tile * kTileRows >= m_rows || !is_wanted(target[pair], which)) return;
    const uint8_t* matrix = in_slot(slots, slot_stride, offset, target[pair]);
    const int x_row = per_pair != 0 ? pair : pair / top_k;
    const RowPair sum =
        multiply_pair<C>(matrix + tile * tile_bytes(C, cols), cols, x + static_cast<int64_t>(x_row) * x_bytes, lane);
    const int row = tile * kTileRows + 2 * lane;
    if (lane >= kPairsOfTile || row >= m_rows) return;
    float* to = y + static_cast<int64_t>(pair) * y_stride + row;
    to[0] = sum.first;
    if (row + 1 < m_rows) to[1] = sum.second;
}

#define EXPERT(codec)                                                                                                  \
    extern "C" __global__ void expert_##codec(const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int m_rows, \
                                              int cols, const int32_t* target, int which, int top_k, int per_pair,     \
                                              const uint8_t* x, int x_bytes, const int32_t* rows, float* y,            \
                                              int y_stride) {                                                          \
        expert<Codec::codec>(slots, slot_stride, offset, m_rows, cols, target, which, top_k, per_pair, x, x_bytes,     \
                             rows, y, y_stride);                                                                       \
    }
FOR_EACH_CODEC(EXPERT)
#undef EXPERT

}  // namespace freetoken
