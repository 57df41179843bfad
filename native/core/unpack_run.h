// Packed weights back to f32, a run of columns of one row at a time: for whole rows here and for embeddings on devices.
// docs/numerics.md has the values. Internal linkage: see numerics.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bytes.h"
#include "core/packed_block.h"

namespace freetoken {

inline constexpr int kUnpackRun = 32;  // columns of a run; the last run of a row of floats may have fewer

// Block `block` of row `lane` of a tile of an integer codec.
template <Codec C>
static inline void unpack_block(const uint8_t* tile, int lane, int64_t block, float* out) {
    constexpr CodecInfo info = codec_info(C);
    const float factor = info.row_line ? load<float>(tile + 4 * lane) : 1.0f;
    const BlockPlace at = find_block<C>(tile, block);
    const BlockScales scales = read_scales<C>(at.header, at.place, lane);
    for (int k = 0; k < kBlock; ++k) {
        const bool is_first = k < kBlock / 2;
        const float scale = (is_first ? scales.first : scales.second) * info.post;
        const float weight = static_cast<float>(read_weight<C>(at.codes, lane, k) - scales.zero);
        if constexpr (has_minimum(C)) {
            out[k] = fma(scale, weight, is_first ? scales.first_minimum : scales.second_minimum);
        } else {
            out[k] = scale * weight * factor;
        }
    }
}

// Column k of a scaled float. A run of four columns is two lines of 32 bytes: 16-bit words of columns 0 and 2, then of
// 1 and 3. e4m3_over_256 is exact, and so is its product with 256.
template <Codec C>
static inline float unpack_scaled(const uint8_t* tile, int lane, int64_t k) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int group_cols = info.group_blocks * info.block;
    const uint8_t* header = tile + k / group_cols * (kScaleLine + group_cols * kTileRows);
    const int i = static_cast<int>(k % group_cols);
    const uint8_t* own = header + info.scale_bytes * (i / info.block * kTileRows + lane);
    const uint8_t* word = header + kScaleLine + i / 4 * 64 + i % 2 * 32 + 2 * lane;
    const float value = e4m3_over_256(word[i % 4 / 2]) * 256.0f;
    if constexpr (C == Codec::mxfp8)
        return e8m0_to_float(*own) * value;
    else
        return load<float>(own) * value;
}

template <Codec C>
static inline float unpack_plain(const uint8_t* tile, int lane, int64_t k) {
    const uint8_t* own = tile + (k * kTileRows + lane) * codec_info(C).code_bytes;
    if constexpr (C == Codec::f16)
        return half_to_float(load<uint16_t>(own));
    else if constexpr (C == Codec::bf16)
        return bfloat_to_float(load<uint16_t>(own));
    else
        return load<float>(own);
}

// Columns [begin, begin + count) of row `lane` of a tile; `begin` is a multiple of kUnpackRun, and `count` is that or
// what is left of the row.
template <Codec C>
static inline void unpack_run(const uint8_t* tile, int lane, int64_t begin, int count, float* out) {
    if constexpr (is_integer(C)) {
        unpack_block<C>(tile, lane, begin / kBlock, out);
    } else {
        for (int i = 0; i < count; ++i) {
            if constexpr (codec_info(C).kind == CodecKind::scaled)
                out[i] = unpack_scaled<C>(tile, lane, begin + i);
            else
                out[i] = unpack_plain<C>(tile, lane, begin + i);
        }
    }
}
static_assert(kUnpackRun == kBlock);

}  // namespace freetoken
