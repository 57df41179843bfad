// Small AVX2 helpers. Included by the AVX2 sources only.
#pragma once

#include <immintrin.h>

#include "core/numerics.h"
#include "kernels/unaligned.h"

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
    return _mm256_set1_epi32(*static_cast<AnyInt*>(p));
}
static inline float load_float(const void* p) {
    return *static_cast<AnyFloat*>(p);
}

// Of words the lower (0) or the upper (1) bytes, e4m3 each, as binary16 of 2^-8 of their values: sign, exponent and
// fraction where binary16 has them, whose exponent is biased by 8 more. A signed byte times 128 has them there, but for
// a second sign bit at the top of the exponent.
static inline __m256i e4m3_as_halves(__m256i words, int byte) {
    const __m256i factors = _mm256_set1_epi16(static_cast<int16_t>(byte == 0 ? 0x0080 : 0x8000));
    return _mm256_and_si256(_mm256_maddubs_epi16(factors, words), _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
}

}  // namespace freetoken::avx2
