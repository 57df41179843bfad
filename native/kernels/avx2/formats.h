// What differs between integer codecs, for the kernel of integer.cpp. A format says:
//   kLines, kParts      lines of codes of a block, and how many lines of bytes a line of codes gives
//   kUpperLines         further lines with upper bits of the codes, if any
//   kHalves             2 where each sixteen weights have a scale of their own, else 1
//   kLargestCode        bounds how many products 16 bits can sum; codes above 127 are multiplied as 16-bit values
//   kMinimum, kZeros    whether there is a minimum or a stored zero point
//   open_group(header, group)  notes what the blocks of a group share
//   Codes(p)(line, part)  the block's codes as unsigned bytes: dword r holds those of four k of row r
//   correction(x, half)   where the sum starts: -Z * sum(q)
//   factor(group, scales, half)  the scales of sixteen rows
//   minimum(group, scales, half)  what is multiplied with sum(q) and added
//   zero(group, scales)          the zero points of sixteen rows
// and where kIntegerScales, in place of the last four:
//   high_start(x, half), low_start(x, half)  where the sums of high and of low bytes start: -Z * their sums, one word
//   factors(scales, half)        the integer scales of sixteen rows, as words
//   minima(scales, x)            where kMinimum: of both halves the minimum times sum(q), added up
#pragma once

#include "core/codec.h"
#include "kernels/activations.h"
#include "kernels/avx2/rows.h"

namespace freetoken::avx2 {
namespace {

struct NibbleFormat {
    static constexpr int kLines = 4;
    static constexpr int kParts = 2;
    static constexpr int kUpperLines = 0;
    static constexpr int kHalves = 1;
    static constexpr int kLargestCode = 15;
    static constexpr bool kMinimum = false;
    static constexpr bool kZeros = false;
    static constexpr bool kIntegerScales = false;

    struct Group {};
    static void open_group(const uint8_t*, Group&) {}

    struct Codes {
        const uint8_t* p;
        Line operator()(int line, int part) const { return nibbles(load_line(p + 64 * line), part); }
    };
    static __m256i correction(const QuantBlock&, int) { return _mm256_setzero_si256(); }
};

// Nibbles with fifth bits in a further line.
struct FiveBits {
    const uint8_t* p;
    Line operator()(int line, int part) const {
        const Line fifth_bit = and_bytes(move_bits(load_line(p + 256), 4 - (2 * line + part)), 0x10);
        return either(nibbles(load_line(p + 64 * line), part), fifth_bit);
    }
};

// Codes that are ids of a table of sixteen bytes.
template <class Table>
struct LookedUp {
    const uint8_t* p;
    Line operator()(int line, int part) const {
        return look_up(Table::entries(), nibbles(load_line(p + 64 * line), part));
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
    static Rows factor(const Group&, const uint8_t* scales, int) { return lower_halves(load_line(scales)); }
    static Rows minimum(const Group&, const uint8_t* scales, int) { return upper_halves(load_line(scales)); }
};

struct Q50 : Q40 {
    static constexpr Codec kCodec = Codec::q5_0;
    static constexpr int kUpperLines = 1;
    static constexpr int kLargestCode = 31;
    using Codes = FiveBits;
    static __m256i correction(const QuantBlock& x, int) { return _mm256_slli_epi32(broadcast32(&x.minus_8_sums), 1); }
};

struct Q51 : Q41 {
    static constexpr Codec kCodec = Codec::q5_1;
    static constexpr int kUpperLines = 1;
    static constexpr int kLargestCode = 31;
    using Codes = FiveBits;
};

struct Q80 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q8_0;
    static constexpr int kLines = 8;
    static constexpr int kParts = 1;
    static constexpr int kLargestCode = 255;
    struct Codes {
        const uint8_t* p;
        Line operator()(int line, int) const { return load_line(p + 64 * line); }
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
    // The scales of two blocks as binary16 in memory, from which one instruction makes f32.
    struct Group {
        const uint8_t* header;
        alignas(32) uint8_t scales[2][kScaleLine];
    };
    static void open_group(const uint8_t* header, Group& group) {
        group.header = header;
        for (int half = 0; half < 2; ++half)
            for (int at = 0; at < kScaleLine; at += 32)
                store256(group.scales[half] + at, e4m3_as_halves(load256(header + at), half));
    }
    static Rows factor(const Group& group, const uint8_t* scales, int half) {
        return halves(group.scales[half] + (scales - group.header));
    }
};

struct Int4_32 : Q40 {
    static constexpr Codec kCodec = Codec::int4_32;
};

struct Int4_32z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_32z;
    static constexpr bool kZeros = true;
    static Rows factor(const Group&, const uint8_t* scales, int) { return lower_halves(load_line(scales)); }
    static Rows zero(const Group&, const uint8_t* scales) { return floats(upper_words(load_line(scales))); }
};

struct Int4_128z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_128z;
    static constexpr bool kZeros = true;
    struct Group {
        Rows factor, zero;
    };
    static void open_group(const uint8_t* header, Group& group) {
        group = {halves(header), floats(widened_bytes(header + 32))};
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
    static void open_group(const uint8_t* header, Group& group) {
        const Line line = load_line(header);
        group = {lower_halves(line), -upper_halves(line)};
    }
    static Rows factor(const Group& group, const uint8_t* scales, int) {
        return group.d * floats(spread_pairs<0, kNone, kNone, kNone>(scales));
    }
    static Rows minimum(const Group& group, const uint8_t* scales, int) {
        return group.minus_dmin * floats(spread_pairs<1, kNone, kNone, kNone>(scales));
    }
};

struct Q5K : Q4K {
    static constexpr Codec kCodec = Codec::q5_k;
    static constexpr int kUpperLines = 1;
    static constexpr int kLargestCode = 31;
    using Codes = FiveBits;
};

struct Q6K : NibbleFormat {
    static constexpr Codec kCodec = Codec::q6_k;
    static constexpr int kUpperLines = 2;
    static constexpr int kHalves = 2;
    static constexpr int kLargestCode = 63;
    struct Codes {
        const uint8_t* p;
        Line operator()(int line, int part) const {
            const Line upper_bits = load_line(p + 256 + line / 2 * 64);
            return either(nibbles(load_line(p + 64 * line), part),
                          and_bytes(move_bits(upper_bits, 4 - 2 * (2 * (line % 2) + part)), 0x30));
        }
    };
    static __m256i correction(const QuantBlock& x, int half) {
        return broadcast32(half == 0 ? &x.minus_32_first : &x.minus_32_second);
    }

    // Two signed scales a row and block under a binary16 of the group, which takes the 2^-24 of scales read as top
    // bytes.
    struct Group {
        Rows d;
    };
    static void open_group(const uint8_t* header, Group& group) {
        group = {lower_halves(load_line(header)) * broadcast(0x1p-24f)};
    }
    static Rows factor(const Group& group, const uint8_t* scales, int half) {
        const Line top =
            half == 0 ? spread_pairs<kNone, kNone, kNone, 0>(scales) : spread_pairs<kNone, kNone, kNone, 1>(scales);
        return group.d * floats(top);
    }
};

// A signed scale a row and block under a binary16 of the group.
struct Iq4Xs : Iq4Nl {
    static constexpr Codec kCodec = Codec::iq4_xs;
    struct Group {
        Rows d;
    };
    static void open_group(const uint8_t* header, Group& group) { group = {lower_halves(load_line(header))}; }
    static Rows factor(const Group& group, const uint8_t* scales, int) {
        return group.d * floats(signed_bytes(scales));
    }
};

struct IntegerScaleFormat : NibbleFormat {
    static constexpr int kLines = 2;
    static constexpr int kParts = 4;
    static constexpr int kHalves = 2;
    static constexpr bool kIntegerScales = true;

    // A byte of the half in the upper byte of each of a row's words.
    static Line upper_bytes(const uint8_t* scales, int half) {
        return half == 0 ? spread_pairs<kNone, 0, kNone, 0>(scales) : spread_pairs<kNone, 1, kNone, 1>(scales);
    }
};

// Codes of two bits, four to a byte, under two bytes a row and block with a scale and a minimum each.
struct Q2K : IntegerScaleFormat {
    static constexpr Codec kCodec = Codec::q2_k;
    static constexpr int kLargestCode = 3;
    static constexpr bool kMinimum = true;
    struct Codes {
        const uint8_t* p;
        Line operator()(int line, int part) const {
            return and_bytes(move_bits(load_line(p + 64 * line), -2 * part), 3);
        }
    };
    using Group = Q4K::Group;
    static void open_group(const uint8_t* header, Group& group) { Q4K::open_group(header, group); }
    static __m256i high_start(const HalfSums&, int) { return _mm256_setzero_si256(); }
    static __m256i low_start(const HalfSums&, int) { return _mm256_setzero_si256(); }
    static WordFactors factors(const uint8_t* scales, int half) {
        const Line upper = and_bytes(upper_bytes(scales, half), 15);
        return {upper, move_bits(upper, -8)};
    }
    static Line minima(const uint8_t* scales, const HalfSums& x) {
        const Line bytes = spread_pairs<0, kNone, 1, kNone>(scales);
        return add_pairs(both(_mm256_setzero_si256()), and_bytes(bytes, 0xF0), both(broadcast32(x.hi_16)),
                         move_bits(bytes, -4), both(broadcast32(x.lo)));
    }
};

// Codes of three bits, two to a byte; the two upper bits of three bytes are the last two codes.
struct Q3K : IntegerScaleFormat {
    static constexpr Codec kCodec = Codec::q3_k;
    static constexpr int kUpperLines = 1;
    static constexpr int kLargestCode = 7;
    struct Codes {
        const uint8_t* p;
        Line operator()(int line, int part) const {
            const int code = kParts * line + part;
            const Line bits = code < 6 ? load_line(p + code / 2 * 64) : last_bits();
            return and_bytes(move_bits(bits, code % 2 * -3), 7);
        }
        Line last_bits() const {
            const Line first = and_bytes(move_bits(load_line(p), -6), 0x03);
            const Line second = and_bytes(move_bits(load_line(p + 64), -4), 0x0C);
            return either(either(first, second), and_bytes(move_bits(load_line(p + 128), -2), 0x30));
        }
    };
    struct Group {
        Rows d;
    };
    static void open_group(const uint8_t* header, Group& group) { group = {lower_halves(load_line(header))}; }
    static __m256i high_start(const HalfSums& x, int half) { return lower_word(x.minus_4_hi + half); }
    static __m256i low_start(const HalfSums& x, int half) { return lower_word(x.minus_4_lo + half); }
    static WordFactors factors(const uint8_t* scales, int half) {
        const Line upper = upper_bytes(scales, half);
        return {upper, {_mm256_srai_epi16(upper.lo, 8), _mm256_srai_epi16(upper.hi, 8)}};
    }

private:
    static __m256i lower_word(const int16_t* p) { return _mm256_set1_epi32(static_cast<uint16_t>(*p)); }
};

}  // namespace
}  // namespace freetoken::avx2
