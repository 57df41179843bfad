// Small AVX2 helpers. Included by the AVX2 sources only.
#pragma once

#include <immintrin.h>

#include "core/numerics.h"

namespace freetoken::avx2 {

static inline __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline __m128i load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

static inline void store256(void* p, __m256i v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

static inline __m256i broadcast32(const void* p) {
    return _mm256_set1_epi32(*static_cast<const __attribute__((may_alias, aligned(1))) int32_t*>(p));
}
static inline __m256 broadcast_float(const void* p) {
    return _mm256_castsi256_ps(broadcast32(p));
}

static inline __m256 negate(__m256 x) {
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

static inline __m256 select_nan(__m256 x, __m256 if_number, __m256 if_nan) {
    return _mm256_blendv_ps(if_number, if_nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline __m256 canonical(__m256 x) {
    return select_nan(x, x, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(kCanonicalNan))));
}

// Eight lanes of freetoken::exp.
static inline __m256 exp(__m256 x) {
    // minps and maxps return the second operand when either is NaN, so the constant goes first.
    __m256 clamped = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
    clamped = _mm256_max_ps(_mm256_set1_ps(-87.0f), clamped);
    const __m256 shifted = _mm256_fmadd_ps(clamped, _mm256_set1_ps(1.44269504f), _mm256_set1_ps(kRoundMagic));
    const __m256 n = _mm256_sub_ps(shifted, _mm256_set1_ps(kRoundMagic));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693145752f), clamped);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.98756915e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.39819995e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33345205e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16657962e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666657e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(
        _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(static_cast<int>(kRoundMagicBits))), 23);
    return select_nan(x, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power)), x);
}

// Of words the lower (0) or the upper (1) bytes, e4m3 each, as binary16 of 2^-8 of their values: sign, exponent and
// fraction where binary16 has them, whose exponent is biased by 8 more. A signed byte times 128 has them there, but for
// a second sign bit at the top of the exponent.
static inline __m256i e4m3_as_halves(__m256i words, int byte) {
    const __m256i factors = _mm256_set1_epi16(static_cast<int16_t>(byte == 0 ? 0x0080 : 0x8000));
    return _mm256_and_si256(_mm256_maddubs_epi16(factors, words), _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
}
static inline __m128i e4m3_as_halves(__m128i words, int byte) {
    const __m128i factors = _mm_set1_epi16(static_cast<int16_t>(byte == 0 ? 0x0080 : 0x8000));
    return _mm_and_si128(_mm_maddubs_epi16(factors, words), _mm_set1_epi16(static_cast<int16_t>(0xBF80)));
}

}  // namespace freetoken::avx2
