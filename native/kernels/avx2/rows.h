// Sixteen rows side by side, in two vectors of eight.
#pragma once

#include <cstring>

#include "core/lanes.h"
#include "kernels/avx2/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {

// A value of each row.
using Rows = Lanes;

// A line of 64 bytes, four of each row; or other integers of sixteen rows.
struct Line {
    __m256i lo, hi;
};

static inline Rows load_rows(const uint8_t* p) {
    return {_mm256_castsi256_ps(load256(p)), _mm256_castsi256_ps(load256(p + 32))};
}

// Stores the results of the tile's rows that exist for token t of the group.
static inline void store_rows(const TileJob& job, int t, Rows results) {
    float all[kTileRows];
    float* y = job.y + static_cast<size_t>(t) * job.ldy;
    float* out = job.rows == kTileRows ? y : all;
    freetoken::store(out, canonical(results));
    if (out == all) std::memcpy(y, all, static_cast<size_t>(job.rows) * sizeof(float));
}

static inline Line load_line(const uint8_t* p) {
    return {load256(p), load256(p + 32)};
}
static inline Line either(Line a, Line b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
static inline Line and_bytes(Line a, int mask) {
    const __m256i bytes = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(a.lo, bytes), _mm256_and_si256(a.hi, bytes)};
}
// Bits of every byte moved up by `distance`, or down where it is negative; bits of a neighbour may come in.
static inline Line move_bits(Line a, int distance) {
    if (distance == 0) return a;
    if (distance > 0) return {_mm256_slli_epi16(a.lo, distance), _mm256_slli_epi16(a.hi, distance)};
    return {_mm256_srli_epi16(a.lo, -distance), _mm256_srli_epi16(a.hi, -distance)};
}
// The low (part 0) or the high nibble of every byte.
static inline Line nibbles(Line packed, int part) {
    return and_bytes(move_bits(packed, -4 * part), 15);
}
// Each byte, which must be below 16, as the index into a table.
static inline Line look_up(__m128i table, Line ids) {
    const __m256i both = _mm256_broadcastsi128_si256(table);
    return {_mm256_shuffle_epi8(both, ids.lo), _mm256_shuffle_epi8(both, ids.hi)};
}

// Sixteen dwords as f32.
static inline Rows floats(Line dwords) {
    return {_mm256_cvtepi32_ps(dwords.lo), _mm256_cvtepi32_ps(dwords.hi)};
}
static inline Line upper_words(Line dwords) {
    return {_mm256_srli_epi32(dwords.lo, 16), _mm256_srli_epi32(dwords.hi, 16)};
}
// Sixteen bytes as dwords.
static inline Line widened_bytes(const uint8_t* p) {
    const auto eight = [](const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); };
    return {_mm256_cvtepu8_epi32(eight(p)), _mm256_cvtepu8_epi32(eight(p + 8))};
}
static inline Line signed_bytes(const uint8_t* p) {
    const auto eight = [](const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); };
    return {_mm256_cvtepi8_epi32(eight(p)), _mm256_cvtepi8_epi32(eight(p + 8))};
}

static inline Line both(__m256i half) {
    return {half, half};
}

// Keeps the compiler from adding up in a tree, for which there are not registers enough.
static inline __m256i in_order(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}

// Adds pairs of words of a, each times a factor, and those of b.
static inline Line add_pairs(Line sum, Line a, Line a_factors, Line b, Line b_factors) {
    const auto add = [](__m256i sum, __m256i a, __m256i a_factors, __m256i b, __m256i b_factors) {
        const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(a, a_factors), _mm256_madd_epi16(b, b_factors));
        return in_order(_mm256_add_epi32(sum, both));
    };
    return {add(sum.lo, a.lo, a_factors.lo, b.lo, b_factors.lo), add(sum.hi, a.hi, a_factors.hi, b.hi, b_factors.hi)};
}

// What the words of sums of high and of low bytes are multiplied with.
struct WordFactors {
    Line high, low;
};

// Sixteen pairs of bytes as sixteen dwords: for each byte of a dword the first (0) or the second (1) of its pair, or
// zero (kNone).
inline constexpr int kNone = -1;
template <int k0, int k1, int k2, int k3>
static inline Line spread_pairs(const uint8_t* p) {
    constexpr auto at = [](int row) {
        uint32_t order = 0;
        const int bytes[4] = {k0, k1, k2, k3};
        for (int i = 0; i < 4; ++i)
            order |= static_cast<uint32_t>(bytes[i] == kNone ? 0x80 : 2 * row + bytes[i]) << 8 * i;
        return static_cast<int>(order);
    };
    const __m256i order = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    const auto spread = [&](__m128i pairs) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(pairs), order); };
    return {spread(load128(p)), spread(load128(p + 16))};
}

// Sixteen binary16 side by side.
static inline Rows halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
static inline Rows bfloats(const uint8_t* p) {
    const auto widen = [](__m128i words) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16); };
    return {_mm256_castsi256_ps(widen(load128(p))), _mm256_castsi256_ps(widen(load128(p + 16)))};
}
// Of eight dwords the lower words, then the upper ones.
static inline __m256i words_apart(__m256i dwords) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(dwords, order), 0xD8);
}
// Of sixteen dwords the lower words, or the upper ones, as binary16.
static inline Rows lower_halves(Line dwords) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(words_apart(dwords.lo))),
            _mm256_cvtph_ps(_mm256_castsi256_si128(words_apart(dwords.hi)))};
}
static inline Rows upper_halves(Line dwords) {
    return {_mm256_cvtph_ps(_mm256_extracti128_si256(words_apart(dwords.lo), 1)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(words_apart(dwords.hi), 1))};
}

// Sixteen e8m0, 0 being the subnormal 2^-127.
static inline Rows powers_of_two(const uint8_t* p) {
    const auto power = [](__m256i e) {
        return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
    };
    const Line e = widened_bytes(p);
    return {power(e.lo), power(e.hi)};
}

}  // namespace freetoken::avx2
