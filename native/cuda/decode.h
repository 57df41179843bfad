// Codes and scales of packed matrices (docs/numerics.md, "Packed codecs") as kernels of products read them. The unit is
// eight weights of a row, k = 8j .. 8j+7, which are one dword of line j, or more: q8_0 keeps them in two lines, q5_1,
// q5_k and q6_k have upper bits in a line of their own, the last eight of q3_k are in the upper bits of three lines.
// Codes of two bits are half a dword of line j / 2. So a line of 64 bytes is a load of 4 bytes by 16 threads, or of 8
// bytes by 8 threads that own two rows each.
//
// Weights come as signed bytes c = w + Z, whose products dp4a and the tensor cores sum: Z is 0 where w fits at no cost
// (q8_0, iq4_nl, iq4_xs), else the sum starts from -Z * sum(q), which activations carry along. Instructions for eight
// weights:
// 3 for plain nibbles, 11 for e2m1 (two tables of eight bytes, a sign each, of which the other gives 0), 7 for q5_k and
// q6_k.
#pragma once

#include "core/codec.h"
#include "core/packed_block.h"
#include "cuda/codecs.h"
#include "cuda/device.h"
#include "kernels/activations.h"

#ifdef FREETOKEN_EMULATION
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL _Pragma("unroll")
#endif

namespace freetoken {

inline constexpr int kLinesOfBlock = 4;  // dwords of a row and block, and groups of eight weights, of nibbles

template <class T>
static inline T load_aligned(const void* address) {
    return *static_cast<const T*>(address);
}

// Where the parts of a block begin in its tile.
struct BlockOffsets {
    int header;  // of its group
    int place;   // in its group
    int codes;
};

template <Codec C>
static inline BlockOffsets block_offsets(int block) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int header_bytes = info.header_lines * kScaleLine;
    constexpr int code_bytes = info.code_bytes * kTileRows;
    const int group = block / info.group_blocks;
    const int header = (info.row_line ? kScaleLine : 0) + group * (header_bytes + info.group_blocks * code_bytes);
    const int place = block % info.group_blocks;
    return {header, place, header + header_bytes + place * code_bytes};
}

// --- codes

// Dwords of a row's block.
template <Codec C>
inline constexpr int kCodeWords = codec_info(C).code_bytes / 4;

// How many of them hold weights 8j .. 8j+7, and which.
static constexpr int words_of_eight(Codec codec) {
    if (codec == Codec::q3_k) return 3;
    return codec == Codec::q8_0 || has_fifth_bits(codec) || codec == Codec::q6_k ? 2 : 1;
}
template <Codec C>
static constexpr int word_of_eight(int j, int i) {
    if (C == Codec::q8_0) return 2 * j + i;
    if (C == Codec::q2_k) return j / 2;
    if (C == Codec::q3_k) return i == 0 ? j % 3 : i;
    if (i == 0) return j;
    return C == Codec::q6_k ? kLinesOfBlock + j / 2 : kLinesOfBlock;
}
template <Codec C>
using WordsOfEight = uint32_t[words_of_eight(C)];

// Eight weights, or bytes of activations, in two words.
struct Eight {
    uint32_t low;   // 8j .. 8j+3
    uint32_t high;  // 8j+4 .. 8j+7
};

// Tables answer nibbles in the order in which they lie, 0 4 1 5 and 2 6 3 7.
static inline Eight in_order(uint32_t first, uint32_t second) {
    return {permute_bytes(first, second, 0x6420u), permute_bytes(first, second, 0x7531u)};
}

// e2m1 doubled, plus 12. The sign is bit 3 of a nibble, where a table of bytes below 128 answers 0.
static inline Eight decode_e2m1(uint32_t codes) {
    const uint32_t flipped = codes ^ 0x88888888u;
    const auto look_up = [](uint32_t positive, uint32_t negative) {
        return look_up_bytes<0x0F0E0D0Cu, 0x18141210u>(positive) | look_up_bytes<0x090A0B0Cu, 0x00040608u>(negative);
    };
    return in_order(look_up(codes, flipped), look_up(codes >> 16, flipped >> 16));
}

static inline Eight decode_iq4_nl(uint32_t codes) {
    const uint32_t places = codes & 0x77777777u;
    const uint32_t upper = codes >> 3 & 0x11111111u;
    const auto look_up = [](uint32_t place, uint32_t is_upper) {
        const uint32_t choice = look_up_bytes<0x0000FF00u, 0>(is_upper);
        return (look_up_bytes<0xBFAD9881u, 0xF6EADDCFu>(place) & ~choice) |
               (look_up_bytes<0x26190D01u, 0x71594535u>(place) & choice);
    };
    return in_order(look_up(places, upper), look_up(places >> 16, upper >> 16));
}

// Bits `from` and up of each byte at bit `to` and up, as far as `mask` has them.
static inline uint32_t moved_bits(uint32_t word, int from, int to, uint32_t mask) {
    return (from < to ? word << (to - from) : word >> (from - to)) & mask;
}

// Weights 8j .. 8j+7 plus Z as signed bytes, from their dwords.
template <Codec C>
static inline Eight decode_eight(const WordsOfEight<C>& words, int j) {
    const uint32_t first = words[0];
    [[maybe_unused]] const uint32_t second = words[words_of_eight(C) > 1 ? 1 : 0];
    if constexpr (C == Codec::q8_0) return {first ^ 0x80808080u, second ^ 0x80808080u};
    if constexpr (C == Codec::mxfp4 || C == Codec::nvfp4) return decode_e2m1(first);
    if constexpr (has_iq4_table(C)) return decode_iq4_nl(first);
    if constexpr (C == Codec::q2_k)
        return {moved_bits(first, j % 2 * 4, 0, 0x03030303u), moved_bits(first, j % 2 * 4 + 2, 0, 0x03030303u)};
    if constexpr (C == Codec::q3_k) {
        const uint32_t last = moved_bits(first, 6, 0, 0x03030303u) | moved_bits(second, 6, 2, 0x0C0C0C0Cu) |
                              moved_bits(words[2], 6, 4, 0x30303030u);
        const uint32_t codes = j < 3 ? first : last;
        return {codes & 0x07070707u, codes >> 3 & 0x07070707u};
    }
    Eight codes = {first & 0x0F0F0F0Fu, first >> 4 & 0x0F0F0F0Fu};
    if constexpr (has_fifth_bits(C)) {
        codes.low |= moved_bits(second, 2 * j, 4, 0x10101010u);
        codes.high |= moved_bits(second, 2 * j + 1, 4, 0x10101010u);
    }
    if constexpr (C == Codec::q6_k) {
        codes.low |= moved_bits(second, j % 2 * 4, 4, 0x30303030u);
        codes.high |= moved_bits(second, j % 2 * 4 + 2, 4, 0x30303030u);
    }
    return codes;
}

// --- scales

// What a row of a group shares, and what a row has for the block alone, as they lie; 0 where there is none.
struct ScaleWords {
    uint32_t shared;
    uint32_t own;
};

template <Codec C>
static inline ScaleWords load_scales(const uint8_t* tile, const BlockOffsets& at, int row) {
    constexpr int bytes = codec_info(C).scale_bytes;
    constexpr bool line_is_shared = codec_info(C).header_lines > 1;
    const uint8_t* header = tile + at.header;
    ScaleWords words = {0, 0};
    if constexpr (line_is_shared) words.shared = load_aligned<uint32_t>(header + 4 * row);
    if constexpr (C == Codec::int4_128z)
        words.shared = load_aligned<uint16_t>(header + 2 * row) | uint32_t{header[2 * kTileRows + row]} << 16;
    const uint8_t* own = header + (line_is_shared ? kScaleLine : 0) + bytes * (at.place * kTileRows + row);
    if constexpr (bytes == 4) words.own = load_aligned<uint32_t>(own);
    if constexpr (bytes == 2) words.own = load_aligned<uint16_t>(own);
    if constexpr (bytes == 1) words.own = *own;
    return words;
}

template <bool HasIntegerScales>
struct ScalesChoice {
    using Type = BlockScales;
};
template <>
struct ScalesChoice<true> {
    using Type = IntegerScales;
};
template <Codec C>
using Scales = typename ScalesChoice<has_integer_scales(C)>::Type;

// As read_scales and read_integer_scales in core/packed_block.h.
template <Codec C>
static inline Scales<C> decode_scales(ScaleWords words) {
    const float d = half_value((codec_info(C).scale_bytes == 4 ? words.own : words.shared) & 0xFFFFu);
    const uint32_t low = words.own & 0xFFu;
    const uint32_t high = words.own >> 8;
    if constexpr (has_integer_scales(C)) {
        return integer_scales<C>(d, half_value(words.shared >> 16), words.own);
    } else if constexpr (C == Codec::q4_k || C == Codec::q5_k) {
        const float scale = d * static_cast<float>(low);
        const float minimum = -(half_value(words.shared >> 16) * static_cast<float>(high));
        return {scale, scale, minimum, minimum, 0};
    } else if constexpr (C == Codec::q6_k) {
        return {d * static_cast<float>(static_cast<int8_t>(low)), d * static_cast<float>(static_cast<int8_t>(high)),
                0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::iq4_xs) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(low));
        return {scale, scale, 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::nvfp4) {
        return {e4m3_over_256(static_cast<uint8_t>(low)), e4m3_over_256(static_cast<uint8_t>(high)), 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::mxfp4) {
        const float scale = e8m0_to_float(static_cast<uint8_t>(low));
        return {scale, scale, 0.0f, 0.0f, 0};
    } else if constexpr (C == Codec::int4_128z) {
        return {d, d, 0.0f, 0.0f, static_cast<int>(words.shared >> 16)};
    } else if constexpr (C == Codec::int4_32z) {
        return {d, d, 0.0f, 0.0f, static_cast<int>(words.own >> 16)};
    } else if constexpr (C == Codec::q4_1 || C == Codec::q5_1) {
        const float minimum = half_value(words.own >> 16);
        return {d, d, minimum, minimum, 0};
    } else {
        const float scale = half_value(words.own);
        return {scale, scale, 0.0f, 0.0f, 0};
    }
}

// --- what a row's finished sum is multiplied with

template <Codec C>
static inline float row_factor(const uint8_t* tile, int row) {
    if constexpr (codec_info(C).row_line) return load_aligned<float>(tile + 4 * row);
    return codec_info(C).post;
}

// --- activations of integer codecs

// The first 32 bytes of a QuantBlock; the second half where a codec has half scales.
struct BlockSums {
    float scale, sum;
    int minus_8_sums, minus_12_sums;
    int minus_12[2], minus_32[2];  // of weights 0..15 and 16..31
};

template <Codec C>
static inline BlockSums load_sums(const QuantBlock* x) {
    const uint4 whole = load_vector(x);
    BlockSums sums = {
        float_of(whole.x), float_of(whole.y), static_cast<int>(whole.z), static_cast<int>(whole.w), {}, {}};
    if constexpr (has_half_scales(C)) {
        const uint4 halves = load_vector(&x->minus_12_first);
        sums.minus_12[0] = static_cast<int>(halves.x);
        sums.minus_12[1] = static_cast<int>(halves.y);
        sums.minus_32[0] = static_cast<int>(halves.z);
        sums.minus_32[1] = static_cast<int>(halves.w);
    }
    return sums;
}

// Number of scales of a row's block.
template <Codec C>
inline constexpr int kHalves = has_half_scales(C) ? 2 : 1;

template <Codec C>
inline constexpr bool kHasZeroSum = C == Codec::nvfp4 || C == Codec::q3_k || C == Codec::q6_k || C == Codec::mxfp4 ||
                                    C == Codec::q4_0 || C == Codec::q5_0 || C == Codec::int4_32;

// -Z * sum(q) over a half, or over the whole block of a codec without halves; 0 where decode_eight gives w itself, and
// for codecs with a stored zero point.
template <Codec C>
static inline int zero_sum(const BlockSums& x, int half) {
    if constexpr (C == Codec::nvfp4) return x.minus_12[half];
    if constexpr (C == Codec::q3_k) return x.minus_32[half] >> 3;  // exact
    if constexpr (C == Codec::q6_k) return x.minus_32[half];
    if constexpr (C == Codec::mxfp4) return x.minus_12_sums;
    if constexpr (C == Codec::q4_0 || C == Codec::int4_32) return x.minus_8_sums;
    if constexpr (C == Codec::q5_0) return 2 * x.minus_8_sums;
    return 0;
}

// acc plus the minimum of a row's block times the sum of q.
static inline float add_minimum(const BlockScales& scales, const BlockSums& x, float acc) {
    return fma(scales.first_minimum * x.scale, x.sum, acc);
}

// acc plus a row's block, of whose halves `products` are the sums of products.
template <Codec C>
static inline float add_halves(const IntegerScales& scales, const int32_t (&products)[2], const BlockSums& x,
                               float acc) {
    const int32_t sums[2] = {-(x.minus_32[0] >> 5), -(x.minus_32[1] >> 5)};  // exact
    return add_halves<C>(scales, products, sums, x.scale, acc);
}

}  // namespace freetoken
