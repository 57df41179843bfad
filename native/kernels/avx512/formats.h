// What differs between integer codecs, for the kernel of integer.cpp. A format says:
//   kLines, kParts               lines of codes of a block, and how many vectors of codes a line gives
//   kUpperLines                  further lines, with upper bits of the codes
//   kHalves                      2 where each sixteen weights have a scale of their own, else 1
//   kMinimum, kZeros             whether there is a minimum, or a stored zero point
//   open_group(header)           what the blocks of a group share
//   codes(group, lines, line, part)  codes as unsigned bytes: dword r holds those of four k of row r
//   correction(x, half)          where the sum of low bytes starts: -Z * sum(q)
//   factor(group, scales, half)  the scales of sixteen rows
//   minimum(group, scales, half) where kMinimum: what is multiplied with sum(q) and added
//   zero(group, scales)          where kZeros: the zero points of sixteen rows
// and where kIntegerScales, in place of the last four:
//   high_start(x, half), low_start(x, half)  where the sums of high and of low bytes start, as words: -Z * their sums
//   scales(scales)               the integer scales of a row's two halves, as words
//   minima(scales, x)            where kMinimum: of both halves the minimum times sum(q), added up
#pragma once

#include "core/codec.h"
#include "kernels/activations.h"
#include "kernels/avx512/simd.h"

namespace freetoken::avx512 {

// Sixteen binary16 side by side.
static inline __m512 halves(const uint8_t* p) {
    return _mm512_cvtph_ps(load_half_line(p));
}

// Of sixteen dwords the lower words as binary16.
static inline __m512 lower_halves(__m512i line) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(line));
}

// Puts the nibble of `part` low in every byte; what the other bits of a byte hold is left open.
static inline __m512i nibble_down(__m512i packed, int part) {
    return part == 0 ? packed : _mm512_srli_epi16(packed, 4);
}

// Words moved up by `distance` bits, or down where it is negative.
static inline __m512i move_bits(__m512i v, int distance) {
    if (distance == 0) return v;
    return distance > 0 ? _mm512_slli_epi16(v, static_cast<unsigned>(distance))
                        : _mm512_srli_epi16(v, static_cast<unsigned>(-distance));
}

// Of every byte the bits `mask` of the first, the others of the second.
static inline __m512i either(__m512i first, __m512i second, int mask) {
    return _mm512_ternarylogic_epi32(first, second, _mm512_set1_epi8(static_cast<char>(mask)), 0xE4);
}

// A table for vpermb, which looks at the six lower bits of a byte: of them those from `kFrom` on, as many as `kMask`
// has. Held in a register.
template <int kFrom, int kMask>
static inline __m512i bits_of_six() {
    struct Table {
        alignas(64) uint8_t of[64];
        constexpr Table() : of() {
            for (int bits = 0; bits < 64; ++bits) of[bits] = static_cast<uint8_t>(bits >> kFrom & kMask);
        }
    };
    static constexpr Table table;
    __m512i entries = load_line(table.of);
    asm volatile("" : "+v"(entries));
    return entries;
}

// Low nibbles under upper bits: of every byte the bits `mask` of `bits`, moved to bit 4 and up. A mask holds the bits
// of two parts four apart: when one of them is in place, the other lies among bits 0..3, of this byte or the next,
// which are taken from `low`.
static inline __m512i under_bits(__m512i low, __m512i bits, int mask, int distance) {
    const __m512i upper = move_bits(_mm512_and_si512(bits, _mm512_set1_epi8(static_cast<char>(mask))), distance);
    return either(low, upper, 15);
}

// Nibbles with fifth bits in a further line.
template <class Lines>
static inline __m512i five_bits(const Lines& lines, int line, int part) {
    const int bit = 2 * line + part;
    return under_bits(nibble_down(lines[line], part), lines[4], 0x11 << bit % 4, 4 - bit);
}

// The lines of a block, loaded where they are wanted.
struct LinesInPlace {
    const uint8_t* p;
    __m512i operator[](int i) const { return load_line(p + 64 * i); }
};

// The lines of a block, each loaded once and in order. The hardware fetches a stream ahead best when its lines are met
// in order, and codes with upper lines want the last lines first: decoding gains a sixth by this order.
template <int N>
class LinesInOrder {
public:
    explicit LinesInOrder(const uint8_t* p) {
        for (int i = 0; i < N; ++i) {
            lines_[i] = load_line(p + 64 * i);
            asm volatile("" : "+v"(lines_[i]));  // the compiler keeps these in order
        }
    }
    __m512i operator[](int i) const { return lines_[i]; }

private:
    __m512i lines_[N];
};

// The same of two or three lines. No array, which gcc 12 would keep in memory too: such kernels have no load to spare.
template <int N>
class FewLinesInOrder {
public:
    explicit FewLinesInOrder(const uint8_t* p)
        : first_(load(p)), second_(load(p + 64)), third_(N > 2 ? load(p + 128) : second_) {}
    __m512i operator[](int i) const { return i == 0 ? first_ : i == 1 ? second_ : third_; }

private:
    static __m512i load(const uint8_t* p) {
        __m512i line = load_line(p);
        asm volatile("" : "+v"(line));
        return line;
    }
    const __m512i first_, second_, third_;
};

struct NibbleFormat {
    static constexpr int kLines = 4;
    static constexpr int kParts = 2;
    static constexpr int kUpperLines = 0;
    static constexpr int kHalves = 1;
    static constexpr bool kMinimum = false;
    static constexpr bool kZeros = false;
    static constexpr bool kIntegerScales = false;

    struct Group {};
    static Group open_group(const uint8_t*) { return {}; }

    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        return _mm512_and_si512(nibble_down(lines[line], part), _mm512_set1_epi8(15));
    }
    static __m512i correction(const QuantBlock*, int) { return _mm512_setzero_si512(); }
};

// Codes that are ids of a table of sixteen bytes. vpermb looks at six bits of an index and the table repeats, so the
// upper bits of a byte do no harm.
template <class Table>
struct TableFormat : NibbleFormat {
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        return _mm512_permutexvar_epi8(nibble_down(lines[line], part), _mm512_broadcast_i32x4(Table::entries()));
    }
};

struct DoubledE2m1 {  // plus 12
    static __m128i entries() { return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0); }
};

struct Iq4NlValues {  // plus 128
    static __m128i entries() {
        return _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15);
    }
};

struct Q40 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_0;
    static __m512i correction(const QuantBlock* x, int) { return broadcast32(&x->minus_8_sums); }
    static __m512 factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Q41 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_1;
    static constexpr bool kMinimum = true;
    static __m512 factor(const Group&, const uint8_t* scales, int) { return lower_halves(load_line(scales)); }
    static __m512 minimum(const Group&, const uint8_t* scales, int) {
        return lower_halves(_mm512_srli_epi32(load_line(scales), 16));
    }
};

struct Q50 : Q40 {
    static constexpr Codec kCodec = Codec::q5_0;
    static constexpr int kUpperLines = 1;
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        return five_bits(lines, line, part);
    }
    static __m512i correction(const QuantBlock* x, int) { return _mm512_slli_epi32(broadcast32(&x->minus_8_sums), 1); }
};

struct Q51 : Q41 {
    static constexpr Codec kCodec = Codec::q5_1;
    static constexpr int kUpperLines = 1;
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        return five_bits(lines, line, part);
    }
};

struct Q80 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q8_0;
    static constexpr int kLines = 8;
    static constexpr int kParts = 1;
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int) {
        return lines[line];
    }
    static __m512i correction(const QuantBlock* x, int) { return _mm512_slli_epi32(broadcast32(&x->minus_8_sums), 4); }
    static __m512 factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Mxfp4 : TableFormat<DoubledE2m1> {
    static constexpr Codec kCodec = Codec::mxfp4;
    static __m512i correction(const QuantBlock* x, int) { return broadcast32(&x->minus_12_sums); }
    static __m512 factor(const Group&, const uint8_t* scales, int) { return powers_of_two(scales); }
};

struct Iq4Nl : TableFormat<Iq4NlValues> {
    static constexpr Codec kCodec = Codec::iq4_nl;
    static __m512i correction(const QuantBlock* x, int half) { return Q80::correction(x, half); }
    static __m512 factor(const Group&, const uint8_t* scales, int) { return halves(scales); }
};

struct Nvfp4 : TableFormat<DoubledE2m1> {
    static constexpr Codec kCodec = Codec::nvfp4;
    static constexpr int kHalves = 2;
    static __m512i correction(const QuantBlock* x, int half) {
        return broadcast32(half == 0 ? &x->minus_12_first : &x->minus_12_second);
    }
    static __m512 factor(const Group&, const uint8_t* scales, int half) {
        const __m256i pairs = load_half_line(scales);
        return upper_e4m3(half == 0 ? _mm256_slli_epi16(pairs, 8) : pairs);
    }
};

struct Int4_32 : Q40 {
    static constexpr Codec kCodec = Codec::int4_32;
};

struct Int4_32z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_32z;
    static constexpr bool kZeros = true;
    static __m512 factor(const Group&, const uint8_t* scales, int) { return lower_halves(load_line(scales)); }
    static __m512 zero(const Group&, const uint8_t* scales) {
        return _mm512_cvtepi32_ps(_mm512_srli_epi32(load_line(scales), 16));
    }
};

struct Int4_128z : NibbleFormat {
    static constexpr Codec kCodec = Codec::int4_128z;
    static constexpr bool kZeros = true;
    struct Group {
        __m512 factor, zero;
    };
    static Group open_group(const uint8_t* header) {
        const __m128i zeros = _mm_loadu_si128(reinterpret_cast<const __m128i*>(header + 32));
        return {halves(header), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(zeros))};
    }
    static __m512 factor(const Group& group, const uint8_t*, int) { return group.factor; }
    static __m512 zero(const Group& group, const uint8_t*) { return group.zero; }
};

// Sixteen pairs of an unsigned scale and a minimum under two binary16 of the group.
struct Q4K : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_k;
    static constexpr bool kMinimum = true;
    struct Group {
        __m512 d, minus_dmin;
    };
    static Group open_group(const uint8_t* header) {
        const __m512i line = load_line(header);
        const __m512i dmin = _mm512_srli_epi32(line, 16);
        return {lower_halves(line), lower_halves(_mm512_xor_si512(dmin, _mm512_set1_epi32(0x8000)))};
    }
    static __m512 factor(const Group& group, const uint8_t* scales, int) {
        const __m512i scale = _mm512_cvtepu16_epi32(_mm256_and_si256(load_half_line(scales), _mm256_set1_epi16(255)));
        return _mm512_mul_ps(group.d, _mm512_cvtepi32_ps(scale));
    }
    static __m512 minimum(const Group& group, const uint8_t* scales, int) {
        const __m512i minimum = _mm512_cvtepu16_epi32(_mm256_srli_epi16(load_half_line(scales), 8));
        return _mm512_mul_ps(group.minus_dmin, _mm512_cvtepi32_ps(minimum));
    }
};

struct Q5K : Q4K {
    static constexpr Codec kCodec = Codec::q5_k;
    static constexpr int kUpperLines = 1;
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        return five_bits(lines, line, part);
    }
};

struct Q6K : NibbleFormat {
    static constexpr Codec kCodec = Codec::q6_k;
    static constexpr int kUpperLines = 2;
    static constexpr int kHalves = 2;
    template <class Lines>
    static __m512i codes(const auto&, const Lines& lines, int line, int part) {
        const int bit = 2 * (2 * (line % 2) + part);
        return under_bits(nibble_down(lines[line], part), lines[kLines + line / 2], 0x33 << bit % 4, 4 - bit);
    }
    static __m512i correction(const QuantBlock* x, int half) {
        return broadcast32(half == 0 ? &x->minus_32_first : &x->minus_32_second);
    }

    // Sixteen pairs of signed scales under a binary16 of the group.
    struct Group {
        __m512 d;
    };
    static Group open_group(const uint8_t* header) { return {lower_halves(load_line(header))}; }
    static __m512 factor(const Group& group, const uint8_t* scales, int half) {
        const __m256i pairs = load_half_line(scales);
        const __m256i upper = half == 0 ? _mm256_slli_epi16(pairs, 8) : pairs;
        const __m512i scale = _mm512_cvtepi16_epi32(_mm256_srai_epi16(upper, 8));
        return _mm512_mul_ps(group.d, _mm512_cvtepi32_ps(scale));
    }
};

// Sixteen signed scales under a binary16 of the group.
struct Iq4Xs : Iq4Nl {
    static constexpr Codec kCodec = Codec::iq4_xs;
    using Group = Q6K::Group;
    static Group open_group(const uint8_t* header) { return Q6K::open_group(header); }
    static __m512 factor(const Group& group, const uint8_t* scales, int) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
        return _mm512_mul_ps(group.d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    }
};

struct IntegerScaleFormat : NibbleFormat {
    static constexpr int kLines = 2;
    static constexpr int kParts = 4;
    static constexpr int kHalves = 2;
    static constexpr bool kIntegerScales = true;
};

// Codes of two bits, four to a byte, under sixteen pairs of bytes with a scale and a minimum each.
struct Q2K : IntegerScaleFormat {
    static constexpr Codec kCodec = Codec::q2_k;
    static constexpr bool kMinimum = true;
    struct Group {
        __m512 d, minus_dmin;
        __m512i part_1, part_2;
    };
    static Group open_group(const uint8_t* header) {
        const auto [d, minus_dmin] = Q4K::open_group(header);
        return {d, minus_dmin, bits_of_six<2, 3>(), bits_of_six<4, 3>()};
    }
    template <class Lines>
    static __m512i codes(const Group& group, const Lines& lines, int line, int part) {
        if (part == 1) return _mm512_permutexvar_epi8(lines[line], group.part_1);
        if (part == 2) return _mm512_permutexvar_epi8(lines[line], group.part_2);
        return _mm512_and_si512(move_bits(lines[line], -2 * part), _mm512_set1_epi8(3));
    }
    static __m512i high_start(const HalfSums&, int) { return _mm512_setzero_si512(); }
    static __m512i low_start(const HalfSums&, int) { return _mm512_setzero_si512(); }
    static __m512i scales(const uint8_t* scales) { return _mm512_and_si512(words(scales), _mm512_set1_epi16(15)); }
    static __m512i minima(const uint8_t* scales, const HalfSums& x) {
        const __m512i minimum = _mm512_srli_epi16(words(scales), 4);
        const __m512i sixteenfold = _mm512_and_si512(words(scales), _mm512_set1_epi16(0xF0));
        return dot_words(_mm512_madd_epi16(sixteenfold, broadcast32(x.hi_16)), minimum, broadcast32(x.lo));
    }

private:
    static __m512i words(const uint8_t* scales) { return _mm512_cvtepu8_epi16(load_half_line(scales)); }
};

// Codes of three bits, two to a byte; the two upper bits of three bytes are the last two codes.
struct Q3K : IntegerScaleFormat {
    static constexpr Codec kCodec = Codec::q3_k;
    static constexpr int kUpperLines = 1;
    struct Group {
        __m512 d;
        __m512i upper_codes;
    };
    static Group open_group(const uint8_t* header) { return {Q6K::open_group(header).d, bits_of_six<3, 7>()}; }
    template <class Lines>
    static __m512i codes(const Group& group, const Lines& lines, int line, int part) {
        const int code = kParts * line + part;
        const __m512i bits = code < 6 ? lines[code / 2] : last_bits(lines);
        if (code % 2 == 1) return _mm512_permutexvar_epi8(bits, group.upper_codes);
        return _mm512_and_si512(bits, _mm512_set1_epi8(7));
    }
    static __m512i high_start(const HalfSums& x, int half) { return broadcast32(x.minus_4_hi + half); }
    static __m512i low_start(const HalfSums& x, int half) { return broadcast32(x.minus_4_lo + half); }
    static __m512i scales(const uint8_t* scales) { return _mm512_cvtepi8_epi16(load_half_line(scales)); }

private:
    template <class Lines>
    static __m512i last_bits(const Lines& lines) {
        const __m512i two = either(move_bits(lines[0], -6), move_bits(lines[1], -4), 3);
        return either(two, move_bits(lines[2], -2), 15);
    }
};

}  // namespace freetoken::avx512
