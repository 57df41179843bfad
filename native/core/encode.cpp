#include "core/encode.h"

#include "core/bytes.h"

namespace freetoken {
namespace {

constexpr const char* kNotFinite = "a value that is no finite number";
constexpr const char* kTooLarge = "a value too large for the form";
constexpr float kTooLargeForE2m1 = 0x1.Cp127f;  // from 7 * 2^125 on rounding may give 2^128
constexpr float kLargestE2m1 = 6.0f;
constexpr float kLargestE4m3 = 448.0f;
constexpr int kHalf = kBlock / 2;

float magnitude(float x) {
    return float_of(bits_of(x) & 0x7FFFFFFFu);
}

// The largest magnitude of n values; NaN if one of them is NaN. As integers, magnitudes order finite < Inf < NaN.
float largest_magnitude(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t k = 0; k < n; ++k) {
        const uint32_t bits = bits_of(x[k]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return float_of(largest);
}

// Whether 4-bit floats can hold a block whose largest magnitude this is.
const char* check_e2m1(float largest) {
    if (!is_finite(largest)) return kNotFinite;
    return largest < kTooLargeForE2m1 ? nullptr : kTooLarge;
}

// --- q8_0

const char* encode_q8_0(const float* x, uint8_t* raw) {
    const float largest = largest_magnitude(x, kBlock);
    if (!is_finite(largest)) return kNotFinite;
    const uint16_t half = float_to_half(largest / 127.0f);
    const float d = half_to_float(half);
    if (!is_finite(d)) return kTooLarge;
    store(raw, half);
    for (int k = 0; k < kBlock; ++k) {
        // A subnormal d may be rounded down by so much that the quotient leaves the bytes.
        const float quotient = d == 0.0f ? 0.0f : x[k] / d;
        const float low = quotient < -127.0f ? -127.0f : quotient;
        const float clamped = low > 127.0f ? 127.0f : low;
        raw[2 + k] = static_cast<uint8_t>(bits_of(clamped + kRoundMagic) - kRoundMagicBits);
    }
    return nullptr;
}

// --- 4-bit floats

// N values as e2m1 codes under one step.
template <int N>
struct Coded {
    uint8_t code[N];
    float error;  // sum of squares of what rounding changed
};

// Rounds to nearest, ties to the even code; beyond 6 steps to 6. A step of 0 codes zeros.
template <int N>
Coded<N> code_e2m1(const float (&x)[N], float step) {
    Coded<N> out;
    float squares[N];
    for (int k = 0; k < N; ++k) {
        const float size = magnitude(x[k]);
        const float v = step == 0.0f ? 0.0f : size / step;
        const int doubled =
            (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + 2 * (v > 2.5f) + 2 * (v >= 3.5f) + 4 * (v > 5.0f);
        const int code = doubled - (doubled > 4) - (doubled > 6) - 3 * (doubled > 8);
        out.code[k] = static_cast<uint8_t>(code | (x[k] < 0.0f && code > 0 ? 8 : 0));
        const float error = size - step * (static_cast<float>(doubled) * 0.5f);
        squares[k] = error * error;
    }
    out.error = lane_sum(squares, N);
    return out;
}

// Under the step 1 or 2, whichever changes less; the smaller step if both change the same.
const char* encode_mxfp4(const float* x, uint8_t* raw) {
    const float largest = largest_magnitude(x, kBlock);
    if (const char* what = check_e2m1(largest)) return what;
    // Biased exponent of the scale under which the largest value is in [4, 8); 2^-127 is the smallest scale.
    const int biased = static_cast<int>(bits_of(largest) >> 23) - 2;
    const uint8_t scale = static_cast<uint8_t>(largest == 0.0f || biased < 0 ? 0 : biased);
    float steps[kBlock];
    for (int k = 0; k < kBlock; ++k) steps[k] = x[k] / e8m0_to_float(scale);
    const Coded<kBlock> fine = code_e2m1(steps, 1.0f);
    const Coded<kBlock> coarse = code_e2m1(steps, 2.0f);
    const bool take_fine = fine.error <= coarse.error;
    const uint8_t* code = take_fine ? fine.code : coarse.code;
    raw[0] = take_fine ? scale : scale + 1;
    for (int k = 0; k < kHalf; ++k) raw[1 + k] = static_cast<uint8_t>(code[k] | code[k + kHalf] << 4);
    return nullptr;
}

// A magnitude to the nearest e4m3, ties to even; what is too large to 448.
uint8_t to_e4m3(float x) {
    if (x >= kLargestE4m3) return 0x7E;
    if (x < 0x1p-6f) return static_cast<uint8_t>(bits_of(x * 512.0f + kRoundMagic) - kRoundMagicBits);
    const uint32_t bits = bits_of(x);
    return static_cast<uint8_t>(((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3));
}

struct CodedHalf {
    uint8_t scale;
    Coded<kHalf> coded;
};

// Sixteen values, given in units of the row's factor, under the scale that makes the largest of them `target`.
CodedHalf code_half(const float (&x)[kHalf], float largest, float target) {
    const uint8_t scale = to_e4m3(largest / target);
    return {scale, code_e2m1(x, e4m3_over_256(scale) * 256.0f)};
}

// The largest value becomes 6, or 4 where that changes less: nothing lies between the two.
void encode_nvfp4(const float* x, float factor, uint8_t* raw) {
    for (int half = 0; half < 2; ++half, x += kHalf) {
        float units[kHalf];
        for (int k = 0; k < kHalf; ++k) units[k] = factor == 0.0f ? 0.0f : x[k] / factor;
        const float largest = largest_magnitude(units, kHalf);
        const CodedHalf six = code_half(units, largest, 6.0f);
        const CodedHalf four = code_half(units, largest, 4.0f);
        const CodedHalf& best = six.coded.error <= four.coded.error ? six : four;
        raw[half] = best.scale;
        for (int k = 0; k < kHalf; k += 2)
            raw[2 + 8 * half + k / 2] = static_cast<uint8_t>(best.coded.code[k] | best.coded.code[k + 1] << 4);
    }
}

std::optional<BadValue> encode_nvfp4_row(const float* x, int64_t cols, uint8_t* raw) {
    for (int64_t b = 0; b < cols / kBlock; ++b)
        if (const char* what = check_e2m1(largest_magnitude(x + b * kBlock, kBlock))) return BadValue{0, b, what};
    const float factor = largest_magnitude(x, cols) / (kLargestE2m1 * kLargestE4m3);
    store(raw, factor);
    raw += sizeof factor;
    for (int64_t b = 0; b < cols / kBlock; ++b, x += kBlock, raw += 18) encode_nvfp4(x, factor, raw);
    return std::nullopt;
}

template <const char* (*Encode)(const float*, uint8_t*)>
std::optional<BadValue> encode_row(Form form, const float* x, int64_t cols, uint8_t* raw) {
    const int64_t block_bytes = raw_row_bytes(form, kBlock);
    for (int64_t b = 0; b < cols / kBlock; ++b, x += kBlock, raw += block_bytes)
        if (const char* what = Encode(x, raw)) return BadValue{0, b, what};
    return std::nullopt;
}

}  // namespace

std::optional<BadValue> encode_rows(Form form, const float* values, int64_t rows, int64_t cols, uint8_t* raw) {
    const int64_t row_bytes = raw_row_bytes(form, cols);
    for (int64_t row = 0; row < rows; ++row, values += cols, raw += row_bytes) {
        std::optional<BadValue> bad;
        if (form == Form::q8_0) bad = encode_row<encode_q8_0>(form, values, cols, raw);
        if (form == Form::mxfp4) bad = encode_row<encode_mxfp4>(form, values, cols, raw);
        if (form == Form::nvfp4) bad = encode_nvfp4_row(values, cols, raw);
        if (bad) {
            bad->row = row;
            return bad;
        }
    }
    return std::nullopt;
}

}  // namespace freetoken
