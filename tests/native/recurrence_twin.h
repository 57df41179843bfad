// Recurrences as docs/numerics.md writes them down, one value after another: what every table must reproduce.
#pragma once

#include <algorithm>
#include <vector>

#include "core/numerics.h"
#include "ops/ops.h"

namespace freetoken::test {

using Floats = std::vector<float>;

inline float activated_twin(GateKind kind, float x) {
    if (kind == GateKind::none) return x;
    return (kind == GateKind::silu ? x : 1.0f) / (1.0f + freetoken::exp(-x));
}

inline float* at(Floats& values, size_t i) {
    return values.data() + i;
}

// One token of a convolution; w and history a channel after another, its oldest input first.
inline Floats conv_twin(const Floats& x, const Floats& w, const float* bias, GateKind kind, Floats& history) {
    const size_t channels = x.size(), kernel = w.size() / channels;
    Floats y(channels);
    for (size_t c = 0; c < channels; ++c) {
        float total = bias != nullptr ? bias[c] : 0.0f;
        float* const past = history.data() + c * (kernel - 1);
        for (size_t j = 0; j + 1 < kernel; ++j) total = fma(w[c * kernel + j], past[j], total);
        y[c] = canonical(activated_twin(kind, fma(w[c * kernel + kernel - 1], x[c], total)));
        for (size_t j = 0; j + 2 < kernel; ++j) past[j] = past[j + 1];
        past[kernel - 2] = canonical(x[c]);
    }
    return y;
}

// One token of one head of the delta rule; state [k_dim][v_dim], g one value or k_dim.
inline Floats delta_twin(const Floats& q, const Floats& k, const Floats& v, const Floats& g, float b, float scale,
                         Floats& state) {
    const size_t k_dim = k.size(), v_dim = v.size();
    Floats o(v_dim);
    for (size_t c = 0; c < v_dim; ++c) {
        float seen = 0.0f, out = 0.0f;
        for (size_t i = 0; i < k_dim; ++i)
            seen = fma(state[i * v_dim + c], freetoken::exp(g[g.size() == 1 ? 0 : i]) * k[i], seen);
        const float update = sigmoid(b) * (v[c] - seen);
        for (size_t i = 0; i < k_dim; ++i) {
            float& s = state[i * v_dim + c];
            s = canonical(fma(k[i], update, s * freetoken::exp(g[g.size() == 1 ? 0 : i])));
            out = fma(s, q[i], out);
        }
        o[c] = canonical(scale * out);
    }
    return o;
}

// One token of one head of a state space; state [head_dim][state_dim], a one value or state_dim.
inline Floats ssm_twin(const SsmShape& shape, const float* a, float d, float dt_bias, const Floats& x, float dt,
                       const float* b, const float* c, Floats& state) {
    const auto n = static_cast<size_t>(shape.state_dim);
    float step = softplus(dt + dt_bias);
    if (shape.dt_min > step) step = shape.dt_min;
    if (shape.dt_max > 0.0f && shape.dt_max < step) step = shape.dt_max;
    Floats y(x.size());
    for (size_t p = 0; p < x.size(); ++p) {
        const float input = step * x[p];
        float ascending = 0.0f;
        for (size_t i = 0; i < n; ++i) {
            float& s = state[p * n + i];
            s = canonical(fma(input, b[i], s * freetoken::exp(step * a[shape.by_channel ? i : 0])));
            ascending = fma(c[i], s, ascending);
        }
        const float sum = shape.by_channel ? ascending : lane_dot(c, state.data() + p * n, n);
        y[p] = canonical(fma(d, x[p], sum));
    }
    return y;
}

// What lies a channel after another, in the blocks of ops/recurrences.h.
inline Floats in_blocks(const Floats& values, size_t channels) {
    const size_t rows = values.size() / channels;
    Floats blocks;
    for (size_t first = 0; first < channels; first += 16)
        for (size_t row = 0; row < rows; ++row)
            for (size_t c = first; c < std::min(first + 16, channels); ++c) blocks.push_back(values[c * rows + row]);
    return blocks;
}

}  // namespace freetoken::test
