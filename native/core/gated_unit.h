// Gated units in scalar form: what stands between the matrices of a feed-forward part. kernels/glu.h has the same
// arithmetic for sixteen values at a time.
#pragma once

#include "core/numerics.h"

namespace freetoken {

// The numbers are those by which the device's kernels know them. relu2: max(up, 0)^2, without a gate.
enum class GluKind : int { silu, clamped_silu, relu2, limited_silu, gelu_tanh, gelu, capped_silu };

// clamped_silu: as in gpt-oss, with its alpha and limit. limited_silu: silu, of what lies within the limit.
// capped_silu: silu, of which no more than the limit is kept.
struct Glu {
    GluKind kind = GluKind::silu;
    float alpha = 1.0f;
    float limit = 0.0f;

    constexpr bool is_gated() const { return kind != GluKind::relu2; }
};

// silu(gate) * up
static inline float silu_glu(float gate, float up) {
    return canonical(gate / (1.0f + exp(-gate)) * up);
}

// gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit); (u + 1) * g * sigmoid(alpha * g). NaN passes the clamps.
static inline float clamped_silu_glu(float gate, float up, float alpha, float limit) {
    const float g = limit < gate ? limit : gate;
    const float capped = limit < up ? limit : up;
    const float u = capped < -limit ? -limit : capped;
    const float swish = g / (1.0f + exp(-(alpha * g)));
    return canonical((u + 1.0f) * swish);
}

// DeepSeek-V4: silu(min(gate, limit)) * clamp(up, -limit, limit). NaN passes the clamps.
static inline float limited_silu_glu(float gate, float up, float limit) {
    const float g = limit < gate ? limit : gate;
    const float capped = limit < up ? limit : up;
    return silu_glu(g, capped < -limit ? -limit : capped);
}

// Step-3.5: min(silu(gate), limit) * clamp(up, -limit, limit). NaN passes.
static inline float capped_silu_glu(float gate, float up, float limit) {
    const float open = gate / (1.0f + exp(-gate));
    const float capped = limit < up ? limit : up;
    return canonical((limit < open ? limit : open) * (capped < -limit ? -limit : capped));
}

// gelu(gate) * up by the hyperbolic tangent: 0.5 g (1 + tanh(a)) is g * sigmoid(2 a), a = sqrt(2 / pi) (g + 0.044715 g^3).
static inline float gelu_tanh_glu(float gate, float up) {
    const float twice = gate * fma(gate * gate, 0.0713548163f, 1.59576912f);
    return canonical(gate / (1.0f + exp(-twice)) * up);
}

// Half of erfc(|x| / sqrt 2) e^(x^2 / 2) / t with t = 1 / (1 + |x| / 4), by the coefficients of t, the highest first.
inline constexpr float kHalfErfc[10] = {0.016864209f, -0.06433728f, 0.05528493f, 0.023592317f, 0.01674013f,
                                        0.08449402f,  0.07274777f,  0.09535507f, 0.09951195f,  0.0997469f};

// gelu(gate) * up by the error function: max(g, 0) - |g| erfc(|g| / sqrt 2) / 2. Of an infinite gate it makes NaN.
static inline float gelu_glu(float gate, float up) {
    const float below = gate < -gate ? gate : -gate;
    const float t = 1.0f / fma(below, -0.25f, 1.0f);
    float p = kHalfErfc[0];
    for (int i = 1; i < 10; ++i) p = fma(p, t, kHalfErfc[i]);
    const float tail = below * t * p * exp(-0.5f * gate * gate);
    return canonical(((0.0f > gate ? 0.0f : gate) + tail) * up);
}

// max(x, 0)^2. NaN passes.
static inline float relu2(float x) {
    const float open = 0.0f > x ? 0.0f : x;
    return canonical(open * open);
}

static inline float glu_value(const Glu& glu, float gate, float up) {
    switch (glu.kind) {
        case GluKind::silu:
            return silu_glu(gate, up);
        case GluKind::clamped_silu:
            return clamped_silu_glu(gate, up, glu.alpha, glu.limit);
        case GluKind::relu2:
            return relu2(up);
        case GluKind::limited_silu:
            return limited_silu_glu(gate, up, glu.limit);
        case GluKind::capped_silu:
            return capped_silu_glu(gate, up, glu.limit);
        case GluKind::gelu_tanh:
            return gelu_tanh_glu(gate, up);
        case GluKind::gelu:
            return gelu_glu(gate, up);
    }
    return float_of(kCanonicalNan);
}

}  // namespace freetoken
