// The arithmetic of docs/numerics.md in scalar form: every instruction set reproduces these bits.
//
// Everything here has internal linkage on purpose. The header is compiled once per instruction set, and a shared
// inline function would let the linker keep the AVX-512 copy for a machine that has no AVX-512.
// Compile with -ffp-contract=off; `fma` below is the only contraction there is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace freetoken {

inline constexpr int kBlock = 32;               // activations that share one scale
inline constexpr int kTileRows = 16;            // rows of a packed tile; also the number of lanes of a lane sum
inline constexpr int kQuantMax = 32639;         // 127 * 256 + 127: both halves of a quantised value fit int8
inline constexpr float kTinyBlock = 0x1p-110f;  // a block whose largest magnitude is below this is zero
inline constexpr uint32_t kCanonicalNan = 0x7FC00000u;
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer, to even
inline constexpr uint32_t kRoundMagicBits = 0x4B400000u;

static inline float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static inline uint32_t bits_of(float x) {
    return __builtin_bit_cast(uint32_t, x);
}
static inline float float_of(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

// NaN is stored in one form only: x86 makes FFC00000, ARM and CUDA others.
static inline float canonical(float x) {
    return x == x ? x : float_of(kCanonicalNan);
}

static inline bool is_finite(float x) {
    return (bits_of(x) & 0x7F800000u) != 0x7F800000u;
}

// IEEE binary16, subnormals and infinities included.
static inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h >> 15) << 31;
    const uint32_t exponent = h >> 10 & 31u;
    const uint32_t mantissa = h & 1023u;
    if (exponent == 0) return float_of(bits_of(static_cast<float>(static_cast<int>(mantissa)) * 0x1p-24f) | sign);
    if (exponent == 31) return float_of(sign | 0x7F800000u | mantissa << 13);
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to the nearest binary16, ties to even. Values too large become infinity; a NaN keeps the top of its payload.
static inline uint16_t float_to_half(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and more
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        const float shifted = float_of(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of(shifted) - bits_of(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

static inline float bfloat_to_float(uint16_t b) {
    return float_of(static_cast<uint32_t>(b) << 16);
}

// OCP e8m0: 2^(e - 127). e = 0 is the subnormal 2^-127; 255 is a NaN, refused when a matrix is packed.
static inline float e8m0_to_float(uint8_t e) {
    return float_of(e != 0 ? static_cast<uint32_t>(e) << 23 : 0x00400000u);
}

// OCP e4m3fn, times 2^-8, exactly: what the half with the same bits is worth. 0x80 is -0. 0x7f and 0xff, its NaNs, are
// refused when a matrix is packed.
static inline float e4m3_over_256(uint8_t b) {
    // As the upper bits of an f32 the value is 2^-120 of itself, often a subnormal.
    return float_of((b & 0x80u) << 24 | (b & 0x7Fu) << 20) * 0x1p112f;
}

// Twice the values of OCP e2m1 by code; the sign bit is 8.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// ggml's table of iq4_nl, by code.
inline constexpr int8_t kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// e^x: x is clamped to [-87, 88]; Cody-Waite reduction by ln 2 in two parts and the degree 7 polynomial of Cephes'
// expf. Error below 0.9 ulp. NaN stays NaN.
static inline float exp(float x) {
    const float low = 88.0f < x ? 88.0f : x;
    const float clamped = low < -87.0f ? -87.0f : low;
    const float shifted = fma(clamped, 1.44269504f, kRoundMagic);
    const float n = shifted - kRoundMagic;
    float r = fma(n, -0.693145752f, clamped);
    r = fma(n, -1.42860677e-6f, r);
    float p = 1.98756915e-4f;
    p = fma(p, r, 1.39819995e-3f);
    p = fma(p, r, 8.33345205e-3f);
    p = fma(p, r, 4.16657962e-2f);
    p = fma(p, r, 1.66666657e-1f);
    p = fma(p, r, 0.5f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    const float e = float_of(bits_of(p) + ((bits_of(shifted) - kRoundMagicBits) << 23));
    return x == x ? e : x;
}

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp(-x));
}

// log(1 + e^x) as max(x, 0) + log(1 + e), e = e^-|x|; that is twice the inverse hyperbolic tangent of e / (2 + e),
// whose odd series is cut by a Chebyshev fit. No digits are lost where x is far below zero. NaN stays NaN.
static inline float softplus(float x) {
    const float e = exp(x < -x ? x : -x);
    const float s = e / (2.0f + e);
    const float z = s * s;
    float p = 0.11612165f;
    p = fma(p, z, 0.108532876f);
    p = fma(p, z, 0.14296179f);
    p = fma(p, z, 0.19999853f);
    p = fma(p, z, 0.33333334f);
    const float twice = s + s;
    const float tail = fma(twice * z, p, twice);
    return (0.0f > x ? 0.0f : x) + tail;
}

// Whether a router's score lies so far below the best that it does not count (SparseMixer-v2).
static inline bool is_far(float score, float best, float jitter) {
    const float size = score < 0.0f ? -score : score;
    return (best - score) / (size < best ? best : size) > 2.0f * jitter;
}

// bound * tanh(x / bound)
static inline float softcap(float x, float bound) {
    const float e = exp(x / bound * 2.0f);
    return bound * ((e - 1.0f) / (e + 1.0f));
}

// The tree that ends every lane sum. Overwrites `lane`.
static inline float sum_lanes(float (&lane)[16]) {
    for (int width = 8; width > 0; width /= 2)
        for (int l = 0; l < width; ++l) lane[l] = lane[l] + lane[l + width];
    return lane[0];
}

// Lane sum of v[0..n).
static inline float lane_sum(const float* v, size_t n) {
    float lane[16] = {};
    const size_t whole = n / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t l = 0; l < 16; ++l) lane[l] = lane[l] + v[i + l];
    for (size_t i = whole; i < n; ++i) lane[i - whole] = lane[i - whole] + v[i];
    return sum_lanes(lane);
}

// Lane sum of a[i] * b[i], by fma.
static inline float lane_dot(const float* a, const float* b, size_t n) {
    float lane[16] = {};
    const size_t whole = n / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t l = 0; l < 16; ++l) lane[l] = fma(a[i + l], b[i + l], lane[l]);
    for (size_t i = whole; i < n; ++i) lane[i - whole] = fma(a[i], b[i], lane[i - whole]);
    return sum_lanes(lane);
}

}  // namespace freetoken
