// Matrices of experts in their slots times the activations of all pairs that want them: for many pairs an expert
// (expert.cu for few). group.cu makes the groups, tile_product.h says how they are multiplied. Blocks beyond the last
// group end at once.
#include "cuda/pairs.h"
#include "cuda/tile_product.h"

namespace freetoken {

// As expert, for the pairs that group_pairs put into `starts` and `order`; what it was given as `which` counts. Blocks
// of 128 threads; the grid covers pairs of tiles and, along y, the most groups that there can be.
template <Codec C>
static inline void expert_many(const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int m_rows, int cols,
                               const int32_t* target, int top_k, int per_pair, const uint8_t* x, int x_bytes, float* y,
                               int y_stride, const int32_t* starts, const int32_t* order) {
    const int group = static_cast<int>(blockIdx.y);
    const int tile = static_cast<int>(blockIdx.x) * kTilesOfBlock;
    const int tiles = min(kTilesOfBlock, static_cast<int>(tile_count(m_rows)) - tile);
    if (tiles <= 0 || group >= starts[0]) return;
    const int32_t* pairs = order + starts[1 + 2 * group];
    const uint8_t* matrix = in_slot(slots, slot_stride, offset, target[pairs[0]]);
    const auto row_at = [=](int token) {
        const int pair = pairs[token];
        return static_cast<uint32_t>(per_pair != 0 ? pair : pair / top_k) * static_cast<uint32_t>(x_bytes);
    };
    const auto write = [=](int row, int token, float value) {
        const int own = tile * kTileRows + row;
        if (own < m_rows) y[static_cast<int64_t>(pairs[token]) * y_stride + own] = value;
    };
    multiply_tiles<C>(matrix + tile * tile_bytes(C, cols), tiles, cols, x, starts[2 + 2 * group], row_at, write);
}

#define EXPERT_MANY(codec)                                                                                          \
    extern "C" __global__ void expert_many_##codec(                                                                 \
        const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int m_rows, int cols, const int32_t* target,   \
        int /*which*/, int top_k, int per_pair, const uint8_t* x, int x_bytes, const int32_t* /*rows*/, float* y,   \
        int y_stride, const int32_t* starts, const int32_t* order) {                                                \
        expert_many<Codec::codec>(slots, slot_stride, offset, m_rows, cols, target, top_k, per_pair, x, x_bytes, y, \
                                  y_stride, starts, order);                                                         \
    }
FOR_EACH_CODEC(EXPERT_MANY)
#undef EXPERT_MANY

}  // namespace freetoken
