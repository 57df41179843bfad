// What differs between integer codecs, for the kernel of integer.cpp. A format says:
//   kLines, kParts      lines of codes of a block, and how many vectors of codes a line gives
//   kHalves             2 where each sixteen weights have a scale of their own, else 1
//   kLargestCode        bounds how many products 16 bits can sum; codes above 127 are multiplied as 16-bit values
//   kMinimum, kZeros    whether there is a minimum or a stored zero point
//   open_group(header)  what the blocks of a group share
//   Codes(p)(line, part, side)   the block's codes as unsigned bytes: dword r holds those of four k of the side's row r
//   correction(x, half)          where the sum starts: -Z * sum(q)
//   factor(group, scales, half)  the scales of sixteen rows
//   minimum(group, scales)       what is multiplied with sum(q) and added
//   zero(group, scales)          the zero points of sixteen rows
#pragma once

#include "core/codec.h"
#include "kernels/activations.h"
#include "kernels/avx2/simd.h"

namespace freetoken::avx2 {

// Sixteen rows are two sides of eight lanes.
struct Rows {
    __m256 side[2];
};

// Of eight dwords the lower words, then the upper ones.
static inline __m256i words_apart(__m256i dwords) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(dwords, order), 0xD8);
}
static inline __m128i lower_words(const uint8_t* p) {
    return _mm256_castsi256_si128(words_apart(load256(p)));
}
static inline __m128i upper_words(const uint8_t* p) {
    return _mm256_extracti128_si256(words_apart(load256(p)), 1);
}

// Sixteen binary16 side by side.
static inline Rows halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
// Of sixteen dwords the lower, or the upper, words as binary16.
static inline Rows lower_halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(lower_words(p)), _mm256_cvtph_ps(lower_words(p + 32))};
}
static inline Rows upper_halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(upper_words(p)), _mm256_cvtph_ps(upper_words(p + 32))};
}

// Sixteen integers of 32 bits as f32, and times sixteen f32.
static inline Rows floats(__m256i upper, __m256i lower) {
    return {_mm256_cvtepi32_ps(upper), _mm256_cvtepi32_ps(lower)};
}
static inline Rows multiply(const Rows& a, const Rows& b) {
    return {_mm256_mul_ps(a.side[0], b.side[0]), _mm256_mul_ps(a.side[1], b.side[1])};
}
static inline Rows negate(const Rows& a) {
    return {negate(a.side[0]), negate(a.side[1])};
}

// Sixteen bytes, or words, as integers of 32 bits.
static inline __m256i unsigned_bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// Sixteen e8m0, 0 being the subnormal 2^-127.
static inline Rows powers_of_two(const uint8_t* p) {
    const auto power = [](__m256i e) {
        return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
    };
    return {power(unsigned_bytes(p)), power(unsigned_bytes(p + 8))};
}

// Of sixteen words the lower (0) or the upper (1) bytes, e4m3 each, as 2^-8 of their values.
static inline Rows e4m3(__m256i words, int byte) {
    const __m256i halves = e4m3_as_halves(words, byte);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

struct NibbleFormat {
    static constexpr int kLines = 4;
    static constexpr int kParts = 2;
    static constexpr int kHalves = 1;
    static constexpr int kLargestCode = 15;
    static constexpr bool kMinimum = false;
    static constexpr bool kZeros = false;

    struct Group {};
    static Group open_group(const uint8_t*) { return {}; }

    struct Codes {
        const uint8_t* p;
        __m256i operator()(int line, int part, int side) const {
            return nibbles(load256(p + 64 * line + 32 * side), part);
        }
    };
    static __m256i nibbles(__m256i packed, int part) {
        return _mm256_and_si256(part == 0 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
    }
    static __m256i correction(const QuantBlock&, int) { return _mm256_setzero_si256(); }
};

// Codes that are ids of a table of sixteen bytes.
template <class Table>
struct LookedUp {
    const uint8_t* p;
    __m256i operator()(int line, int part, int side) const {
        const __m256i ids = NibbleFormat::nibbles(load256(p + 64 * line + 32 * side), part);
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(Table::entries()), ids);
    }
};

struct E2m1Table {  // doubled, plus 12
    static __m128i entries() { return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0); }
};

struct NonLinearTable {  // iq4_nl's values, plus 128
    static __m128i entries() {
        return _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15);
    }
};

struct Q40 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_0;
    static __m256i correction(const QuantBlock& x, int) { return broadcast32(&x.minus_8_sums); }
    static Rows factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Q41 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_1;
    static constexpr bool kMinimum = true;
    static Rows factor(const Group&, const uint8_t* scales, int) { return lower_halves(scales); }
    static Rows minimum(const Group&, const uint8_t* scales) { return upper_halves(scales); }
};

struct Q80 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q8_0;
    static constexpr int kLines = 8;
    static constexpr int kParts = 1;
    static constexpr int kLargestCode = 255;
    struct Codes {
        const uint8_t* p;
        __m256i operator()(int line, int, int side) const { return load256(p + 64 * line + 32 * side); }
    };
    static __m256i correction(const QuantBlock& x, int) { return _mm256_slli_epi32(broadcast32(&x.minus_8_sums), 4); }
    static Rows factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Mxfp4 : NibbleFormat {
    static constexpr Codec kCodec = Codec::mxfp4;
    static constexpr int kLargestCode = 24;
    using Codes = LookedUp<E2m1Table>;
    static __m256i correction(const QuantBlock& x, int) { return broadcast32(&x.minus_12_sums); }
    static Rows factor(const Group&, const uint8_t* scales, int) { return powers_of_two(scales); }
};

struct Iq4Nl : NibbleFormat {
    static constexpr Codec kCodec = Codec::iq4_nl;
    static constexpr int kLargestCode = 241;
    using Codes = LookedUp<NonLinearTable>;
    static __m256i correction(const QuantBlock& x, int half) { return Q80::correction(x, half); }
    static Rows factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Nvfp4 : NibbleFormat {
    static constexpr Codec kCodec = Codec::nvfp4;
    static constexpr int kHalves = 2;
    static constexpr int kLargestCode = 24;
    using Codes = LookedUp<E2m1Table>;
    static __m256i correction(const QuantBlock& x, int half) {
        return broadcast32(half == 0 ? &x.minus_12_first : &x.minus_12_second);
    }
    static Rows factor(const Group&, const uint8_t* scales, int half) { return e4m3(load256(scales), half); }
};

struct Int4_32 : Q40 {
    static constexpr Codec kCodec = Codec::int4_32;
};

struct Int4_32z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_32z;
    static constexpr bool kZeros = true;
    static Rows factor(const Group&, const uint8_t* scales, int) { return lower_halves(scales); }
    static Rows zero(const Group&, const uint8_t* scales) {
        return floats(_mm256_srli_epi32(load256(scales), 16), _mm256_srli_epi32(load256(scales + 32), 16));
    }
};

struct Int4_128z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_128z;
    static constexpr bool kZeros = true;
    struct Group {
        Rows factor, zero;
    };
    static Group open_group(const uint8_t* header) {
        return {halves(header), floats(unsigned_bytes(header + 32), unsigned_bytes(header + 40))};
    }
    static Rows factor(const Group& group, const uint8_t*, int) { return group.factor; }
    static Rows zero(const Group& group, const uint8_t*) { return group.zero; }
};

// Sixteen pairs of an unsigned scale and a minimum under two binary16 of the group.
struct Q4K : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_k;
    static constexpr bool kMinimum = true;
    struct Group {
        Rows d, minus_dmin;
    };
    static Group open_group(const uint8_t* header) { return {lower_halves(header), negate(upper_halves(header))}; }
    static Rows factor(const Group& group, const uint8_t* scales, int) {
        const auto scale = [&](int side) { return _mm256_and_si256(pairs(scales, side), _mm256_set1_epi32(255)); };
        return multiply(group.d, floats(scale(0), scale(1)));
    }
    static Rows minimum(const Group& group, const uint8_t* scales) {
        const auto minimum = [&](int side) { return _mm256_srli_epi32(pairs(scales, side), 8); };
        return multiply(group.minus_dmin, floats(minimum(0), minimum(1)));
    }
    static __m256i pairs(const uint8_t* scales, int side) { return _mm256_cvtepu16_epi32(load128(scales + 16 * side)); }
};

// Bits of every byte moved up by `distance`, or down where it is negative; bits of a neighbour may come in.
static inline __m256i move_bits(__m256i v, int distance) {
    if (distance == 0) return v;
    return distance > 0 ? _mm256_slli_epi16(v, distance) : _mm256_srli_epi16(v, -distance);
}

struct Q5K : Q4K {
    static constexpr Codec kCodec = Codec::q5_k;
    static constexpr int kLargestCode = 31;
    struct Codes {
        const uint8_t* p;
        __m256i operator()(int line, int part, int side) const {
            const __m256i fifth_bits = move_bits(load256(p + 256 + 32 * side), 4 - (2 * line + part));
            return _mm256_or_si256(nibbles(load256(p + 64 * line + 32 * side), part),
                                   _mm256_and_si256(fifth_bits, _mm256_set1_epi8(0x10)));
        }
    };
};

struct Q6K : NibbleFormat {
    static constexpr Codec kCodec = Codec::q6_k;
    static constexpr int kHalves = 2;
    static constexpr int kLargestCode = 63;
    struct Group {
        Rows d;
    };
    static Group open_group(const uint8_t* header) { return {lower_halves(header)}; }
    struct Codes {
        const uint8_t* p;
        __m256i operator()(int line, int part, int side) const {
            const __m256i upper_bits =
                move_bits(load256(p + 256 + line / 2 * 64 + 32 * side), 4 - 2 * (2 * (line % 2) + part));
            return _mm256_or_si256(nibbles(load256(p + 64 * line + 32 * side), part),
                                   _mm256_and_si256(upper_bits, _mm256_set1_epi8(0x30)));
        }
    };
    static __m256i correction(const QuantBlock& x, int half) {
        return broadcast32(half == 0 ? &x.minus_32_first : &x.minus_32_second);
    }
    static Rows factor(const Group& group, const uint8_t* scales, int half) {
        const auto scale = [&](int side) {
            const __m256i pair = _mm256_cvtepi16_epi32(load128(scales + 16 * side));
            return _mm256_srai_epi32(half == 0 ? _mm256_slli_epi32(pair, 24) : pair, half == 0 ? 24 : 8);
        };
        return multiply(group.d, floats(scale(0), scale(1)));
    }
};

}  // namespace freetoken::avx2
