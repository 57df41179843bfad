// How weights are coded, as two tables: packed codecs, and the raw forms that are packed into them. docs/numerics.md
// describes both byte for byte; a new codec is a row here, a name in codec_names.h, a case in pack_integer.cpp or
// pack_floats.cpp and unpack.cpp and a decoder in each kernel family. Device code reads this header too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numerics.h"

namespace freetoken {

enum class Codec {
    f32,
    f16,
    bf16,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    mxfp4,
    iq4_nl,
    iq4_xs,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    nvfp4,
    int4_32,
    int4_32z,
    int4_128z,
    fp8,
    mxfp8
};

// plain: values as they are. scaled: 8-bit floats under a scale a block, multiplied with f32 activations.
// integer: blocks of 32 codes, multiplied as integers with activations rounded to 16 bits.
enum class CodecKind { plain, scaled, integer };

struct CodecInfo {
    Codec codec;
    CodecKind kind;
    int block;         // weights of a row that are decoded together; 1 for plain floats
    int cols_unit;     // a row is a multiple of this many weights
    int group_blocks;  // blocks that share a header; 0 for plain floats
    int header_lines;  // lines of 64 bytes that open a group
    int scale_bytes;   // bytes of the header that a row and block have to themselves; 0 where the group shares all
    int code_bytes;    // bytes of codes a row and block
    int zero;          // Z: the stored code is weight + Z; 0 where the zero point is stored or there is none
    float post;        // factor of the finished sum; 1 where there is a line of row factors
    bool row_line;     // whether a tile opens with a line of sixteen f32 row factors
};

inline constexpr CodecInfo kCodecs[] = {
    {Codec::f32, CodecKind::plain, 1, 1, 0, 0, 0, 4, 0, 1.0f, false},
    {Codec::f16, CodecKind::plain, 1, 1, 0, 0, 0, 2, 0, 1.0f, false},
    {Codec::bf16, CodecKind::plain, 1, 1, 0, 0, 0, 2, 0, 1.0f, false},
    {Codec::q8_0, CodecKind::integer, 32, 32, 2, 1, 2, 32, 128, 1.0f, false},
    {Codec::q4_0, CodecKind::integer, 32, 32, 2, 1, 2, 16, 8, 1.0f, false},
    {Codec::q4_1, CodecKind::integer, 32, 32, 1, 1, 4, 16, 0, 1.0f, false},
    {Codec::q5_0, CodecKind::integer, 32, 32, 2, 1, 2, 20, 16, 1.0f, false},
    {Codec::q5_1, CodecKind::integer, 32, 32, 1, 1, 4, 20, 0, 1.0f, false},
    {Codec::mxfp4, CodecKind::integer, 32, 32, 4, 1, 1, 16, 12, 0.5f, false},
    {Codec::iq4_nl, CodecKind::integer, 32, 32, 2, 1, 2, 16, 128, 1.0f, false},
    {Codec::iq4_xs, CodecKind::integer, 32, 256, 8, 3, 1, 16, 128, 1.0f, false},
    {Codec::q2_k, CodecKind::integer, 32, 256, 8, 5, 2, 8, 0, 1.0f, false},
    {Codec::q3_k, CodecKind::integer, 32, 256, 8, 5, 2, 12, 4, 1.0f, false},
    {Codec::q4_k, CodecKind::integer, 32, 256, 8, 5, 2, 16, 0, 1.0f, false},
    {Codec::q5_k, CodecKind::integer, 32, 256, 8, 5, 2, 20, 0, 1.0f, false},
    {Codec::q6_k, CodecKind::integer, 32, 256, 8, 5, 2, 24, 32, 1.0f, false},
    {Codec::nvfp4, CodecKind::integer, 32, 32, 2, 1, 2, 16, 12, 1.0f, true},
    {Codec::int4_32, CodecKind::integer, 32, 32, 2, 1, 2, 16, 8, 1.0f, true},
    {Codec::int4_32z, CodecKind::integer, 32, 32, 1, 1, 4, 16, 0, 1.0f, true},
    {Codec::int4_128z, CodecKind::integer, 32, 32, 4, 1, 0, 16, 0, 1.0f, true},
    {Codec::fp8, CodecKind::scaled, 128, 1, 1, 1, 4, 128, 0, 256.0f, false},
    {Codec::mxfp8, CodecKind::scaled, 32, 32, 4, 1, 1, 32, 0, 256.0f, false},
};

// Raw row-major forms: those of the codecs' own names, in the same order, and others that end in the same codecs.
enum class Form {
    f32,
    f16,
    bf16,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    mxfp4,
    iq4_nl,
    iq4_xs,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    nvfp4,
    int4_32,
    int4_32z,
    int4_128z,
    fp8,
    mxfp8,
    mxfp4_pairs
};

// A raw row is its header, then its blocks, each of a scale part and of codes; the last block may be shorter.
struct FormInfo {
    Form form;
    Codec codec;
    int row_header;   // bytes before the first block
    int block;        // weights of a block
    int scale_bytes;  // bytes of a block that are not codes
    int code_bits;    // bits of a weight
};

inline constexpr FormInfo kForms[] = {
    {Form::f32, Codec::f32, 0, 1, 0, 32},           {Form::f16, Codec::f16, 0, 1, 0, 16},
    {Form::bf16, Codec::bf16, 0, 1, 0, 16},         {Form::q8_0, Codec::q8_0, 0, 32, 2, 8},
    {Form::q4_0, Codec::q4_0, 0, 32, 2, 4},         {Form::q4_1, Codec::q4_1, 0, 32, 4, 4},
    {Form::q5_0, Codec::q5_0, 0, 32, 2, 5},         {Form::q5_1, Codec::q5_1, 0, 32, 4, 5},
    {Form::mxfp4, Codec::mxfp4, 0, 32, 1, 4},       {Form::iq4_nl, Codec::iq4_nl, 0, 32, 2, 4},
    {Form::iq4_xs, Codec::iq4_xs, 0, 256, 8, 4},    {Form::q2_k, Codec::q2_k, 0, 256, 20, 2},
    {Form::q3_k, Codec::q3_k, 0, 256, 14, 3},       {Form::q4_k, Codec::q4_k, 0, 256, 16, 4},
    {Form::q5_k, Codec::q5_k, 0, 256, 16, 5},       {Form::q6_k, Codec::q6_k, 0, 256, 18, 6},
    {Form::nvfp4, Codec::nvfp4, 4, 32, 2, 4},       {Form::int4_32, Codec::int4_32, 4, 32, 2, 4},
    {Form::int4_32z, Codec::int4_32z, 4, 32, 4, 4}, {Form::int4_128z, Codec::int4_128z, 4, 128, 4, 4},
    {Form::fp8, Codec::fp8, 0, 128, 4, 8},          {Form::mxfp8, Codec::mxfp8, 0, 32, 1, 8},
    {Form::mxfp4_pairs, Codec::mxfp4, 0, 32, 1, 4},
};

inline constexpr int kScaleLine = 64;    // bytes of a line: of a header, of codes, of row factors
inline constexpr int kFloatColumns = 4;  // float matrices are padded to a multiple of this many columns

// Internal linkage: see numerics.h.
static constexpr const CodecInfo& codec_info(Codec codec) {
    return kCodecs[static_cast<size_t>(codec)];
}

static constexpr const FormInfo& form_info(Form form) {
    return kForms[static_cast<size_t>(form)];
}

// The form of the codec's own name.
static constexpr Form form_of(Codec codec) {
    return static_cast<Form>(codec);
}

static constexpr bool is_integer(Codec codec) {
    return codec_info(codec).kind == CodecKind::integer;
}

// Whether activations stay f32: plain values and scaled floats.
static constexpr bool is_float(Codec codec) {
    return !is_integer(codec);
}

// Whether a row of `cols` weights can be coded.
static constexpr bool valid_cols(Codec codec, int64_t cols) {
    return cols > 0 && cols % codec_info(codec).cols_unit == 0;
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
    const int64_t blocks = (cols + info.block - 1) / info.block;
    const int64_t groups = info.group_blocks == 0 ? 0 : (blocks + info.group_blocks - 1) / info.group_blocks;
    const int64_t lines = groups * info.header_lines + (info.row_line ? 1 : 0);
    return lines * kScaleLine + padded_cols(codec, cols) * info.code_bytes * kTileRows / info.block;
}

// Bytes of a packed matrix.
static constexpr int64_t packed_bytes(Codec codec, int64_t rows, int64_t cols) {
    return tile_count(rows) * tile_bytes(codec, cols);
}

// Bytes of one raw row; `cols` must be valid for the form's codec.
static constexpr int64_t raw_row_bytes(Form form, int64_t cols) {
    const FormInfo& info = form_info(form);
    return info.row_header + (cols + info.block - 1) / info.block * info.scale_bytes + cols * info.code_bits / 8;
}

static constexpr bool tables_are_in_order() {
    size_t place = 0;
    for (const FormInfo& info : kForms)
        if (static_cast<size_t>(info.form) != place++) return false;
    place = 0;
    for (const CodecInfo& info : kCodecs) {
        if (static_cast<size_t>(info.codec) != place || kForms[place].codec != info.codec) return false;
        ++place;
    }
    return true;
}
static_assert(tables_are_in_order());

}  // namespace freetoken
