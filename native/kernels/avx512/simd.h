// Small AVX-512 helpers. Included by the AVX-512 sources only.
#pragma once

// gcc 12 warns about the undefined pass-through operands of its own intrinsics (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "core/numerics.h"
#include "kernels/unaligned.h"

namespace freetoken::avx512 {

static inline __m512i load_line(const uint8_t* p) {
    return _mm512_loadu_si512(p);
}

static inline __m256i load_half_line(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

static inline __m512i broadcast32(const void* p) {
    return _mm512_set1_epi32(*static_cast<AnyInt*>(p));
}
static inline __m512 broadcast_float(const void* p) {
    return _mm512_set1_ps(*static_cast<AnyFloat*>(p));
}

// sum + the products of four unsigned codes and four signed bytes at q, in every dword. Written out because gcc 12
// loads q with an instruction of its own.
static inline __m512i dot_bytes(__m512i sum, __m512i codes, const int8_t* q) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<AnyInt*>(q)));
    return sum;
}

// sum + the products of two words and two, in every dword.
static inline __m512i dot_words(__m512i sum, __m512i a, __m512i b) {
    return _mm512_dpwssd_epi32(sum, a, b);
}

// The lower words of two dwords side by side.
static inline __m512i word_pairs(__m512i first, __m512i second) {
    return _mm512_mask_mov_epi16(_mm512_slli_epi32(second, 16), 0x55555555u, first);
}

static inline __m512 canonical(__m512 x) {
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_castps_si512(x), nan, _mm512_set1_epi32(static_cast<int>(kCanonicalNan))));
}

// Sixteen e8m0, 0 being the subnormal 2^-127.
static inline __m512 powers_of_two(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000)));
}

// Of sixteen words the upper bytes, e4m3 each, as 2^-8 of their values: sign, exponent and fraction are put where
// binary16 has them, whose exponent is biased by 8 more.
static inline __m512 upper_e4m3(__m256i words) {
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xBF80));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(words, 1), mask));
}

// Which lanes hold rows that exist.
static inline __mmask16 lane_mask(int count) {
    return static_cast<__mmask16>((1u << count) - 1u);
}

}  // namespace freetoken::avx512
