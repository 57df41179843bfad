// How weights are coded, as a table. docs/numerics.md describes the packed form; a new codec is a row here, a case in
// pack.cpp and a decoder in each kernel family.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/numerics.h"

namespace freetoken {

enum class Codec { f32, f16, bf16, q8_0, q4_0, q4_1, mxfp4 };

struct CodecInfo {
    Codec codec;
    std::string_view name;
    int block;            // weights that share a scale; 1 for plain floats
    int raw_block_bytes;  // bytes of one block in the raw row-major form: ggml's block formats, or the plain value
    int scale_bytes;      // bytes of scale a row and block in the packed form; 0 for plain floats
    int group_blocks;     // blocks whose scales share one 64-byte line; 0 for plain floats
    int code_bytes;       // bytes of codes a row and block
    int zero;             // Z: the stored code is weight + Z
    float post;           // factor of the finished sum
};

inline constexpr CodecInfo kCodecs[] = {
    {Codec::f32, "f32", 1, 4, 0, 0, 4, 0, 1.0f},         {Codec::f16, "f16", 1, 2, 0, 0, 2, 0, 1.0f},
    {Codec::bf16, "bf16", 1, 2, 0, 0, 2, 0, 1.0f},       {Codec::q8_0, "q8_0", 32, 34, 2, 2, 32, 128, 1.0f},
    {Codec::q4_0, "q4_0", 32, 18, 2, 2, 16, 8, 1.0f},    {Codec::q4_1, "q4_1", 32, 20, 4, 1, 16, 0, 1.0f},
    {Codec::mxfp4, "mxfp4", 32, 17, 1, 4, 16, 12, 0.5f},
};

inline constexpr int kScaleLine = 64;    // bytes of the line of scales that opens a group of blocks
inline constexpr int kFloatColumns = 4;  // float matrices are padded to a multiple of this many columns

// Internal linkage: see numerics.h.
static constexpr const CodecInfo& codec_info(Codec codec) {
    return kCodecs[static_cast<size_t>(codec)];
}

static constexpr bool is_float(Codec codec) {
    return codec_info(codec).block == 1;
}

static constexpr std::optional<Codec> codec_by_name(std::string_view name) {
    for (const CodecInfo& info : kCodecs)
        if (info.name == name) return info.codec;
    return std::nullopt;
}

// Whether a row of `cols` weights can be coded: block codecs need whole blocks.
static constexpr bool valid_cols(Codec codec, int64_t cols) {
    return cols > 0 && cols % codec_info(codec).block == 0;
}

static constexpr int64_t tile_count(int64_t rows) {
    return (rows + kTileRows - 1) / kTileRows;
}

static constexpr int64_t padded_cols(Codec codec, int64_t cols) {
    const int64_t unit = is_float(codec) ? kFloatColumns : codec_info(codec).block;
    return (cols + unit - 1) / unit * unit;
}

// Bytes of one packed tile: 16 rows of `cols` weights. A multiple of 64.
static constexpr int64_t tile_bytes(Codec codec, int64_t cols) {
    const CodecInfo& info = codec_info(codec);
    const int64_t blocks = padded_cols(codec, cols) / info.block;
    const int64_t groups = info.group_blocks == 0 ? 0 : (blocks + info.group_blocks - 1) / info.group_blocks;
    return groups * kScaleLine + blocks * info.code_bytes * kTileRows;
}

// Bytes of a packed matrix.
static constexpr int64_t packed_bytes(Codec codec, int64_t rows, int64_t cols) {
    return tile_count(rows) * tile_bytes(codec, cols);
}

// Bytes of one raw row as a checkpoint holds it; `cols` must be valid for the codec.
static constexpr int64_t raw_row_bytes(Codec codec, int64_t cols) {
    return cols / codec_info(codec).block * codec_info(codec).raw_block_bytes;
}

static consteval bool table_is_in_order() {
    for (size_t i = 0; i < sizeof kCodecs / sizeof kCodecs[0]; ++i)
        if (static_cast<size_t>(kCodecs[i].codec) != i) return false;
    return true;
}
static_assert(table_is_in_order());

}  // namespace freetoken
