// Reading the packed form of integer codecs weight by weight, for the scalar kernels and for dequantisation.
// Internal linkage: see numerics.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bytes.h"
#include "core/codec.h"

namespace freetoken {

// Calls f.operator()<C>() with the codec as a constant.
template <class F>
static inline void with_integer_codec(Codec codec, F f) {
    switch (codec) {
        case Codec::q8_0:
            return f.template operator()<Codec::q8_0>();
        case Codec::q4_0:
            return f.template operator()<Codec::q4_0>();
        case Codec::q4_1:
            return f.template operator()<Codec::q4_1>();
        case Codec::q5_0:
            return f.template operator()<Codec::q5_0>();
        case Codec::q5_1:
            return f.template operator()<Codec::q5_1>();
        case Codec::mxfp4:
            return f.template operator()<Codec::mxfp4>();
        case Codec::iq4_nl:
            return f.template operator()<Codec::iq4_nl>();
        case Codec::iq4_xs:
            return f.template operator()<Codec::iq4_xs>();
        case Codec::q2_k:
            return f.template operator()<Codec::q2_k>();
        case Codec::q3_k:
            return f.template operator()<Codec::q3_k>();
        case Codec::q4_k:
            return f.template operator()<Codec::q4_k>();
        case Codec::q5_k:
            return f.template operator()<Codec::q5_k>();
        case Codec::q6_k:
            return f.template operator()<Codec::q6_k>();
        case Codec::nvfp4:
            return f.template operator()<Codec::nvfp4>();
        case Codec::int4_32:
            return f.template operator()<Codec::int4_32>();
        case Codec::int4_32z:
            return f.template operator()<Codec::int4_32z>();
        case Codec::int4_128z:
            return f.template operator()<Codec::int4_128z>();
        case Codec::f32:
        case Codec::f16:
        case Codec::bf16:
        case Codec::fp8:
        case Codec::mxfp8:
            break;
    }
    __builtin_unreachable();
}

// Whether the first and the last sixteen weights of a block have scales of their own.
static constexpr bool has_half_scales(Codec codec) {
    return codec == Codec::q2_k || codec == Codec::q3_k || codec == Codec::q6_k || codec == Codec::nvfp4;
}

// Whether the scales of halves, and minima, are integers under numbers of the group: sums are put together as integers.
static constexpr bool has_integer_scales(Codec codec) {
    return codec == Codec::q2_k || codec == Codec::q3_k;
}

// Whether a block adds a minimum to each weight.
static constexpr bool has_minimum(Codec codec) {
    return codec == Codec::q4_1 || codec == Codec::q5_1 || codec == Codec::q2_k || codec == Codec::q4_k ||
           codec == Codec::q5_k;
}

// Whether codes are ids of ggml's table of iq4_nl.
static constexpr bool has_iq4_table(Codec codec) {
    return codec == Codec::iq4_nl || codec == Codec::iq4_xs;
}

// Whether codes have a fifth bit, in a line of its own.
static constexpr bool has_fifth_bits(Codec codec) {
    return codec == Codec::q5_0 || codec == Codec::q5_1 || codec == Codec::q5_k;
}

static constexpr bool has_zero_point(Codec codec) {
    return codec == Codec::int4_32z || codec == Codec::int4_128z;
}

// Where block `block` of a tile lies: the header of its group, its place in it, its codes.
struct BlockPlace {
    const uint8_t* header;
    int place;
    const uint8_t* codes;
};

template <Codec C>
static inline BlockPlace find_block(const uint8_t* tile, int64_t block) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int64_t header_bytes = info.header_lines * kScaleLine;
    constexpr int64_t lines_bytes = info.code_bytes * kTileRows;
    const int64_t group = block / info.group_blocks;
    const int place = static_cast<int>(block % info.group_blocks);
    const uint8_t* header =
        tile + (info.row_line ? kScaleLine : 0) + group * (header_bytes + info.group_blocks * lines_bytes);
    return {header, place, header + header_bytes + place * lines_bytes};
}

// What the integers of a row's block are multiplied with, before the row's factor and the codec's `post`.
struct BlockScales {
    float first;           // weights 0..15
    float second;          // weights 16..31
    float first_minimum;   // added to each of weights 0..15; 0 for most codecs
    float second_minimum;  // and of 16..31
    int zero;              // taken off each code; 0 for most codecs
};

// The same where has_integer_scales: weights of half h are d * scale[h] times their integer, and to each of them
// minus_dmin * minimum[h] is added.
struct IntegerScales {
    float d;
    float minus_dmin;  // 0, and so are minima, where there is none
    int scale[2];
    int minimum[2];
};

// From d and dmin of a row's group, and the two bytes of its block.
template <Codec C>
static inline IntegerScales integer_scales(float d, float dmin, uint32_t bytes) {
    const int first = static_cast<int>(bytes & 0xFFu);
    const int second = static_cast<int>(bytes >> 8);
    if constexpr (C == Codec::q2_k) return {d, -dmin, {first & 15, second & 15}, {first >> 4, second >> 4}};
    return {d, 0.0f, {static_cast<int8_t>(first), static_cast<int8_t>(second)}, {0, 0}};
}

template <Codec C>
static inline IntegerScales read_integer_scales(const uint8_t* header, int place, int row) {
    const auto half = [](const uint8_t* p) { return half_to_float(load<uint16_t>(p)); };
    const uint8_t* own = header + kScaleLine + codec_info(C).scale_bytes * (kTileRows * place + row);
    return integer_scales<C>(half(header + 4 * row), half(header + 4 * row + 2), load<uint16_t>(own));
}

// acc plus a row's block times one of activations: of each half the sum of products, and that of q.
template <Codec C>
static inline float add_halves(const IntegerScales& scales, const int32_t (&products)[2], const int32_t (&sums)[2],
                               float x_scale, float acc) {
    float total = scales.d * static_cast<float>(scales.scale[0] * products[0] + scales.scale[1] * products[1]);
    if constexpr (has_minimum(C)) {
        const int32_t minima = scales.minimum[0] * sums[0] + scales.minimum[1] * sums[1];
        total = fma(scales.minus_dmin, static_cast<float>(minima), total);
    }
    return fma(total, x_scale, acc);
}

template <Codec C>
static inline BlockScales read_scales(const uint8_t* header, int place, int row) {
    constexpr CodecInfo info = codec_info(C);
    const auto half = [](const uint8_t* p) { return half_to_float(load<uint16_t>(p)); };
    const uint8_t* own = header + info.scale_bytes * (kTileRows * place + row);
    if constexpr (has_integer_scales(C)) {
        const IntegerScales scales = read_integer_scales<C>(header, place, row);
        const auto times = [](float d, int scale) { return d * static_cast<float>(scale); };
        return {times(scales.d, scales.scale[0]), times(scales.d, scales.scale[1]),
                times(scales.minus_dmin, scales.minimum[0]), times(scales.minus_dmin, scales.minimum[1]), 0};
    } else if constexpr (C == Codec::q4_k || C == Codec::q5_k) {
        own += kScaleLine;
        const float scale = half(header + 4 * row) * static_cast<float>(own[0]);
        const float minimum = -(half(header + 4 * row + 2) * static_cast<float>(own[1]));
        return {scale, scale, minimum, minimum, 0};
    } else if constexpr (C == Codec::q6_k) {
        own += kScaleLine;
        const float d = half(header + 4 * row);
        return {d * static_cast<float>(static_cast<int8_t>(own[0])),
                d * static_cast<float>(static_cast<int8_t>(own[1])), 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::iq4_xs) {
        const float scale = half(header + 4 * row) * static_cast<float>(static_cast<int8_t>(own[kScaleLine]));
        return {scale, scale, 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::nvfp4) {
        return {e4m3_over_256(own[0]), e4m3_over_256(own[1]), 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::mxfp4) {
        const float scale = e8m0_to_float(*own);
        return {scale, scale, 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::int4_128z) {
        const float scale = half(header + 2 * row);
        return {scale, scale, 0.0f, 0.0f, header[2 * kTileRows + row]};
    } else {
        const float scale = half(own);
        if constexpr (C == Codec::q4_1 || C == Codec::q5_1) return {scale, scale, half(own + 2), half(own + 2), 0};
        if constexpr (C == Codec::int4_32z) return {scale, scale, 0.0f, 0.0f, own[2]};
        return {scale, scale, 0.0f, 0.0f, 0};
    }
}

// Code k of q3_k, three bits of six: two codes are the six lower bits of a byte of each line, the last two are what is
// left of the three, the first line's lowest.
static inline int read_three_bits(const uint8_t* lane, int k) {
    const int pair = k / 8;
    const int bits = pair < 3 ? lane[pair * 64] : lane[0] >> 6 | lane[64] >> 6 << 2 | lane[2 * 64] >> 6 << 4;
    return bits >> k % 8 / 4 * 3 & 7;
}

// The integer that weight k of a row's block stands for, before its scale; of codecs with a zero point the code itself.
template <Codec C>
static inline int read_weight(const uint8_t* codes, int row, int k) {
    const uint8_t* lane = codes + 4 * row + k % 4;
    if constexpr (C == Codec::q8_0) return lane[k / 4 * 64] - 128;
    if constexpr (C == Codec::q2_k) return lane[k / 16 * 64] >> k / 4 % 4 * 2 & 3;
    if constexpr (C == Codec::q3_k) return read_three_bits(lane, k) - codec_info(C).zero;
    const int byte = lane[k / 8 * 64];
    int code = k % 8 < 4 ? byte & 15 : byte >> 4;
    if constexpr (has_fifth_bits(C)) code |= (lane[4 * 64] >> k / 4 & 1) << 4;
    if constexpr (C == Codec::q6_k) code |= (lane[(4 + k / 16) * 64] >> k / 4 % 4 * 2 & 3) << 4;
    if constexpr (has_iq4_table(C)) return kIq4Nl[code];
    if constexpr (C == Codec::mxfp4 || C == Codec::nvfp4) return kE2m1Doubled[code];
    return code - codec_info(C).zero;
}

static_assert(codec_info(Codec::int4_32z).zero == 0 && codec_info(Codec::int4_128z).zero == 0);

}  // namespace freetoken
