// Sixteen f32 values side by side: what operations and gated units are written in. The same source is compiled once for
// every instruction set; the bits do not depend on which, since every function here is one IEEE operation a lane.
//
// Internal linkage throughout, for the reason given in core/numerics.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "core/numerics.h"

namespace freetoken {
namespace {

// The scalar forms of the same names.
using freetoken::canonical;
using freetoken::exp;
using freetoken::fma;
using freetoken::sigmoid;
using freetoken::softcap;
using freetoken::softplus;

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Lanes {
    __m512 v;
};

inline Lanes broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
inline Lanes load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
inline void store(float* p, Lanes a) {
    _mm512_storeu_ps(p, a.v);
}
inline Lanes operator+(Lanes a, Lanes b) {
    return {_mm512_add_ps(a.v, b.v)};
}
inline Lanes operator-(Lanes a, Lanes b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline Lanes operator*(Lanes a, Lanes b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline Lanes operator/(Lanes a, Lanes b) {
    return {_mm512_div_ps(a.v, b.v)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// b where b < a or either is NaN: the constant goes first so that a NaN in b passes.
inline Lanes min(Lanes a, Lanes b) {
    return {_mm512_min_ps(a.v, b.v)};
}
inline Lanes max(Lanes a, Lanes b) {
    return {_mm512_max_ps(a.v, b.v)};
}
// a where x is a number, b where x is NaN.
inline Lanes where_number(Lanes x, Lanes a, Lanes b) {
    return {_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), a.v)};
}
inline bool all_numbers(Lanes a) {
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) == 0;
}
// a * 2^n for the n that the rounding magic left in the low bits of `shifted`: its own bits leave with the shift.
inline Lanes scale_by_power(Lanes a, Lanes shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), n))};
}
inline Lanes load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(uint16_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline float sum(Lanes a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
// a[0], b[0], a[1], b[1], ... of the first eight lanes, and of the last eight.
inline Lanes interleave_first(Lanes a, Lanes b) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return {_mm512_permutex2var_ps(a.v, order, b.v)};
}
inline Lanes interleave_last(Lanes a, Lanes b) {
    const __m512i order = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return {_mm512_permutex2var_ps(a.v, order, b.v)};
}

#elif defined(__AVX2__)

struct Lanes {
    __m256 lo, hi;
};

inline Lanes broadcast(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Lanes load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, Lanes a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline Lanes operator+(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Lanes operator-(Lanes a, Lanes b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Lanes operator*(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Lanes operator/(Lanes a, Lanes b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes min(Lanes a, Lanes b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline Lanes max(Lanes a, Lanes b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline Lanes where_number(Lanes x, Lanes a, Lanes b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, x.lo, _CMP_ORD_Q)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, x.hi, _CMP_ORD_Q))};
}
inline bool all_numbers(Lanes a) {
    const __m256 none = _mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
    return _mm256_movemask_ps(none) == 0;
}
inline __m256 scale_by_power(__m256 a, __m256 shifted) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}
inline Lanes scale_by_power(Lanes a, Lanes shifted) {
    return {scale_by_power(a.lo, shifted.lo), scale_by_power(a.hi, shifted.hi)};
}
inline Lanes load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(uint16_t* p, Lanes a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline float sum(Lanes a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline Lanes interleave(__m256 a, __m256 b) {
    const __m256 low = _mm256_unpacklo_ps(a, b);
    const __m256 high = _mm256_unpackhi_ps(a, b);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
inline Lanes interleave_first(Lanes a, Lanes b) {
    return interleave(a.lo, b.lo);
}
inline Lanes interleave_last(Lanes a, Lanes b) {
    return interleave(a.hi, b.hi);
}

#else

struct Lanes {
    float v[kLanes];
};

template <class Function>
inline Lanes each_lane(Function function) {
    Lanes result;
    for (int l = 0; l < kLanes; ++l) result.v[l] = function(l);
    return result;
}

inline Lanes broadcast(float x) {
    return each_lane([&](int) { return x; });
}
inline Lanes load(const float* p) {
    return each_lane([&](int l) { return p[l]; });
}
inline void store(float* p, Lanes a) {
    std::memcpy(p, a.v, sizeof a.v);
}
inline Lanes operator+(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] + b.v[l]; });
}
inline Lanes operator-(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] - b.v[l]; });
}
inline Lanes operator*(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] * b.v[l]; });
}
inline Lanes operator/(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] / b.v[l]; });
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return each_lane([&](int l) { return fma(a.v[l], b.v[l], c.v[l]); });
}
inline Lanes min(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] < b.v[l] ? a.v[l] : b.v[l]; });
}
inline Lanes max(Lanes a, Lanes b) {
    return each_lane([&](int l) { return a.v[l] > b.v[l] ? a.v[l] : b.v[l]; });
}
inline Lanes where_number(Lanes x, Lanes a, Lanes b) {
    return each_lane([&](int l) { return x.v[l] == x.v[l] ? a.v[l] : b.v[l]; });
}
inline bool all_numbers(Lanes a) {
    bool all = true;
    for (int l = 0; l < kLanes; ++l) all &= a.v[l] == a.v[l];
    return all;
}
inline Lanes scale_by_power(Lanes a, Lanes shifted) {
    return each_lane([&](int l) { return float_of(bits_of(a.v[l]) + (bits_of(shifted.v[l]) << 23)); });
}
inline Lanes load_half(const uint16_t* p) {
    return each_lane([&](int l) { return half_to_float(p[l]); });
}
inline void store_half(uint16_t* p, Lanes a) {
    for (int l = 0; l < kLanes; ++l) p[l] = float_to_half(a.v[l]);
}
inline float sum(Lanes a) {
    return sum_lanes(a.v);
}
inline Lanes interleave_first(Lanes a, Lanes b) {
    return each_lane([&](int l) { return (l % 2 == 0 ? a : b).v[l / 2]; });
}
inline Lanes interleave_last(Lanes a, Lanes b) {
    return each_lane([&](int l) { return (l % 2 == 0 ? a : b).v[kLanes / 2 + l / 2]; });
}

#endif

inline Lanes operator-(Lanes a) {
    return broadcast(-0.0f) - a;
}

inline Lanes canonical(Lanes a) {
    return where_number(a, a, broadcast(float_of(kCanonicalNan)));
}

// Lane j of rows[i] becomes lane i of rows[j]: four perfect shuffles of all rows.
inline void transpose(Lanes (&rows)[kLanes]) {
    Lanes other[kLanes];
    for (int round = 0; round < 2; ++round) {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            other[2 * i] = interleave_first(rows[i], rows[i + kLanes / 2]);
            other[2 * i + 1] = interleave_last(rows[i], rows[i + kLanes / 2]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            rows[2 * i] = interleave_first(other[i], other[i + kLanes / 2]);
            rows[2 * i + 1] = interleave_last(other[i], other[i + kLanes / 2]);
        }
    }
}

// The first n lanes from memory, zero in the others; n < 16.
inline Lanes load_first(const float* p, int n) {
    alignas(64) float whole[kLanes] = {};
    std::memcpy(whole, p, static_cast<size_t>(n) * sizeof(float));
    return load(whole);
}

inline void store_first(float* p, Lanes a, int n) {
    alignas(64) float whole[kLanes];
    store(whole, a);
    std::memcpy(p, whole, static_cast<size_t>(n) * sizeof(float));
}

// freetoken::exp behind its clamp, a lane, in place. The canonical NaN stays NaN; of another, anything may come. One
// exponential is a long chain of steps: several side by side take hardly longer.
template <int count>
inline void exps_of_clamped(Lanes (&x)[count]) {
    Lanes shifted[count], r[count], p[count];
    for (int i = 0; i < count; ++i) shifted[i] = fma(x[i], broadcast(1.44269504f), broadcast(kRoundMagic));
    for (int i = 0; i < count; ++i) r[i] = shifted[i] - broadcast(kRoundMagic);
    for (int i = 0; i < count; ++i) x[i] = fma(r[i], broadcast(-0.693145752f), x[i]);
    for (int i = 0; i < count; ++i) r[i] = fma(r[i], broadcast(-1.42860677e-6f), x[i]);
    for (int i = 0; i < count; ++i) p[i] = fma(broadcast(1.98756915e-4f), r[i], broadcast(1.39819995e-3f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(8.33345205e-3f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(4.16657962e-2f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(1.66666657e-1f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(0.5f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(1.0f));
    for (int i = 0; i < count; ++i) p[i] = fma(p[i], r[i], broadcast(1.0f));
    for (int i = 0; i < count; ++i) x[i] = scale_by_power(p[i], shifted[i]);
}

inline Lanes exp_of_clamped(Lanes x) {
    Lanes one[1] = {x};
    exps_of_clamped(one);
    return one[0];
}

inline Lanes clamp_for_exp(Lanes x) {
    return max(broadcast(-87.0f), min(broadcast(88.0f), x));
}

// e^x a lane, with the bits of freetoken::exp.
inline Lanes exp(Lanes x) {
    return where_number(x, exp_of_clamped(clamp_for_exp(x)), x);
}

// Of the bits of freetoken::sigmoid, freetoken::softplus and freetoken::softcap.
inline Lanes sigmoid(Lanes x) {
    return broadcast(1.0f) / (broadcast(1.0f) + exp(-x));
}
inline Lanes softplus(Lanes x) {
    const Lanes e = exp(min(x, -x));
    const Lanes s = e / (broadcast(2.0f) + e);
    const Lanes z = s * s;
    Lanes p = fma(broadcast(0.11612165f), z, broadcast(0.108532876f));
    p = fma(p, z, broadcast(0.14296179f));
    p = fma(p, z, broadcast(0.19999853f));
    p = fma(p, z, broadcast(0.33333334f));
    const Lanes twice = s + s;
    return max(broadcast(0.0f), x) + fma(twice * z, p, twice);
}
inline Lanes softcap(Lanes x, float bound) {
    const Lanes e = exp(x / broadcast(bound) * broadcast(2.0f));
    return broadcast(bound) * ((e - broadcast(1.0f)) / (e + broadcast(1.0f)));
}
// A NaN passes above the line, whatever lies below it.
inline Lanes silu(Lanes x) {
    return x / (broadcast(1.0f) + exp_of_clamped(clamp_for_exp(-x)));
}

// The first n lanes of a, zero in the others.
inline Lanes first_lanes(Lanes a, int n) {
    if (n == kLanes) return a;
    alignas(64) float whole[kLanes] = {};
    store_first(whole, a, n);
    return load(whole);
}

// Calls body(i, lanes) for i = 0, 16, ... below n; `lanes` is 16, or what is left.
template <class Body>
inline void for_lanes(int n, Body body) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
    if (i < n) body(i, n - i);
}

inline Lanes load_up_to(const float* p, int n) {
    return n == kLanes ? load(p) : load_first(p, n);
}

inline void store_up_to(float* p, Lanes a, int n) {
    if (n == kLanes)
        store(p, a);
    else
        store_first(p, a, n);
}

}  // namespace
}  // namespace freetoken
