// Packed rows back to f32.
#include "core/pack.h"
#include "core/packed_block.h"

namespace freetoken {
namespace {

template <Codec C>
void unpack_integer_row(const uint8_t* tile, int row, int64_t cols, float* out) {
    constexpr CodecInfo info = codec_info(C);
    const float factor = info.row_line ? load<float>(tile + 4 * row) : 1.0f;
    for (int64_t b = 0; b < cols / kBlock; ++b, out += kBlock) {
        const BlockPlace at = find_block<C>(tile, b);
        const BlockScales scales = read_scales<C>(at.header, at.place, row);
        for (int k = 0; k < kBlock; ++k) {
            const float scale = (k < kBlock / 2 ? scales.first : scales.second) * info.post;
            const float weight = static_cast<float>(read_weight<C>(at.codes, row, k) - scales.zero);
            if constexpr (has_minimum(C)) {
                out[k] = fma(scale, weight, scales.minimum);
            } else {
                out[k] = scale * weight * factor;
            }
        }
    }
}

// e4m3 to f32: e4m3_over_256 is exact, and so is the product.
float e4m3_to_float(uint8_t b) {
    return e4m3_over_256(b) * 256.0f;
}

void unpack_scaled_row(Codec codec, const uint8_t* tile, int row, int64_t cols, float* out) {
    const CodecInfo& info = codec_info(codec);
    const int64_t group_cols = int64_t{info.group_blocks} * info.block;
    for (int64_t begin = 0; begin < cols; begin += group_cols) {
        const int64_t end = begin + group_cols < cols ? begin + group_cols : cols;
        const uint8_t* header = tile;
        const uint8_t* codes = header + kScaleLine;
        for (int64_t k = begin; k < end; ++k) {
            const int64_t i = k - begin;
            const uint8_t* own = header + info.scale_bytes * (i / info.block * kTileRows + row);
            const float scale = codec == Codec::mxfp8 ? e8m0_to_float(*own) : load<float>(own);
            // A run of four columns is two lines of 32 bytes: 16-bit words of columns 0 and 2, then of 1 and 3.
            const uint8_t* word = codes + i / 4 * 64 + i % 2 * 32 + 2 * row;
            out[k] = scale * e4m3_to_float(word[i % 4 / 2]);
        }
        tile += kScaleLine + (end - begin + 3) / 4 * 64;
    }
}

float plain_value(Codec codec, const uint8_t* p) {
    if (codec == Codec::f16) return half_to_float(load<uint16_t>(p));
    if (codec == Codec::bf16) return bfloat_to_float(load<uint16_t>(p));
    return load<float>(p);
}

}  // namespace

void unpack_row(Codec codec, const uint8_t* tiles, int64_t row, int64_t cols, float* out) {
    const CodecInfo& info = codec_info(codec);
    const uint8_t* tile = tiles + row / kTileRows * tile_bytes(codec, cols);
    const int lane = static_cast<int>(row % kTileRows);
    switch (info.kind) {
        case CodecKind::integer:
            with_integer_codec(codec, [&]<Codec C>() { unpack_integer_row<C>(tile, lane, cols, out); });
            return;
        case CodecKind::scaled:
            unpack_scaled_row(codec, tile, lane, cols, out);
            return;
        case CodecKind::plain:
            for (int64_t k = 0; k < cols; ++k)
                out[k] = plain_value(codec, tile + (k * kTileRows + lane) * info.code_bytes);
    }
}

}  // namespace freetoken
