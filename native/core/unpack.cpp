// Packed rows back to f32.
#include "core/pack.h"
#include "core/unpack_run.h"

namespace freetoken {
namespace {

template <Codec C>
void unpack_tile_row(const uint8_t* tile, int lane, int64_t cols, float* out) {
    for (int64_t begin = 0; begin < cols; begin += kUnpackRun) {
        const int64_t left = cols - begin;
        unpack_run<C>(tile, lane, begin, left < kUnpackRun ? static_cast<int>(left) : kUnpackRun, out + begin);
    }
}

}  // namespace

void unpack_row(Codec codec, const uint8_t* tiles, int64_t row, int64_t cols, float* out) {
    const uint8_t* tile = tiles + row / kTileRows * tile_bytes(codec, cols);
    const int lane = static_cast<int>(row % kTileRows);
    switch (codec) {
        case Codec::f32:
            return unpack_tile_row<Codec::f32>(tile, lane, cols, out);
        case Codec::f16:
            return unpack_tile_row<Codec::f16>(tile, lane, cols, out);
        case Codec::bf16:
            return unpack_tile_row<Codec::bf16>(tile, lane, cols, out);
        case Codec::fp8:
            return unpack_tile_row<Codec::fp8>(tile, lane, cols, out);
        case Codec::mxfp8:
            return unpack_tile_row<Codec::mxfp8>(tile, lane, cols, out);
        default:
            with_integer_codec(codec, [&]<Codec C>() { unpack_tile_row<C>(tile, lane, cols, out); });
    }
}

}  // namespace freetoken
