// Rows of the embedding: a thread a run of 32 columns, a row of the grid a token.
#include "core/unpack_run.h"
#include "cuda/codecs.h"
#include "cuda/device.h"

namespace freetoken {

template <Codec C>
static inline void embed_row(const uint8_t* table, int cols, const int* tokens, const int* rows, float scale, float* y,
                             int y_stride) {
    const int row = static_cast<int>(blockIdx.y);
    const int begin = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kUnpackRun;
    if (row >= *rows || begin >= cols) return;
    const int token = tokens[row];
    const uint8_t* tile = table + token / kTileRows * tile_bytes(C, cols);
    float values[kUnpackRun];
    const int count = min(kUnpackRun, cols - begin);
    unpack_run<C>(tile, token % kTileRows, begin, count, values);
    float* to = y + static_cast<size_t>(row) * static_cast<size_t>(y_stride) + begin;
    for (int i = 0; i < count; ++i) to[i] = scale == 1.0f ? values[i] : canonical(scale * values[i]);
}

#define EMBED(codec)                                                                                             \
    extern "C" __global__ void embed_##codec(const uint8_t* table, int cols, const int* tokens, const int* rows, \
                                             float scale, float* y, int y_stride) {                              \
        embed_row<Codec::codec>(table, cols, tokens, rows, scale, y, y_stride);                                  \
    }
FOR_EACH_CODEC(EMBED)
#undef EMBED

}  // namespace freetoken
