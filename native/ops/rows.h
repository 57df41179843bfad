// Operations on one row at a time.
#pragma once

#include <cmath>

#include "core/lanes.h"

namespace freetoken {
namespace {

void scale_row(float* y, float scale, int n) {
    for_lanes(n, [&](int i, int lanes) {
        store_up_to(y + i, canonical(broadcast(scale) * load_up_to(y + i, lanes)), lanes);
    });
}

void bias_scale(float* y, const float* bias, float scale, int n) {
    for_lanes(n, [&](int i, int lanes) {
        Lanes value = load_up_to(y + i, lanes);
        if (bias != nullptr) value = value + load_up_to(bias + i, lanes);
        store_up_to(y + i, canonical(broadcast(scale) * value), lanes);
    });
}

void rms_norm(const float* x, const float* w, float eps, int n, float* y) {
    Lanes squares = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) {
        const Lanes value = load_up_to(x + i, lanes);
        squares = fma(value, value, squares);
    });
    const float r = 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
    for_lanes(n, [&](int i, int lanes) {
        Lanes normed = load_up_to(x + i, lanes) * broadcast(r);
        if (w != nullptr) normed = normed * load_up_to(w + i, lanes);
        store_up_to(y + i, canonical(normed), lanes);
    });
}

void layer_norm(const float* x, const float* w, const float* bias, float eps, int n, float* y) {
    Lanes total = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) { total = total + load_up_to(x + i, lanes); });
    const Lanes mean = broadcast(sum(total) / static_cast<float>(n));
    Lanes squares = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) {
        const Lanes value = first_lanes(load_up_to(x + i, lanes) - mean, lanes);
        squares = fma(value, value, squares);
    });
    const Lanes r = broadcast(1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps));
    for_lanes(n, [&](int i, int lanes) {
        Lanes normed = (load_up_to(x + i, lanes) - mean) * r * load_up_to(w + i, lanes);
        if (bias != nullptr) normed = normed + load_up_to(bias + i, lanes);
        store_up_to(y + i, canonical(normed), lanes);
    });
}

void bound(const float* x, float limit, bool smooth, int n, float* y) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes value = load_up_to(x + i, lanes);
        const Lanes cut = max(broadcast(-limit), min(broadcast(limit), value));
        store_up_to(y + i, canonical(smooth ? softcap(value, limit) : cut), lanes);
    });
}

void add(const float* a, const float* b, float scale, int n, float* y) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes scaled = broadcast(scale) * load_up_to(b + i, lanes);
        store_up_to(y + i, canonical(load_up_to(a + i, lanes) + scaled), lanes);
    });
}

void sigmoid_gate(const float* x, float gate, int n, float* y) {
    const float open = sigmoid(gate);
    for_lanes(
        n, [&](int i, int lanes) { store_up_to(y + i, canonical(broadcast(open) * load_up_to(x + i, lanes)), lanes); });
}

void rope_halves(float* x, int half, const float* cosine, const float* sine) {
    for_lanes(half, [&](int i, int lanes) {
        const Lanes c = load_up_to(cosine + i, lanes);
        const Lanes s = load_up_to(sine + i, lanes);
        const Lanes first = load_up_to(x + i, lanes);
        const Lanes second = load_up_to(x + half + i, lanes);
        store_up_to(x + i, canonical(first * c - second * s), lanes);
        store_up_to(x + half + i, canonical(second * c + first * s), lanes);
    });
}

void rope_pairs(float* x, int half, const float* cosine, const float* sine) {
    for (int i = 0; i < half; ++i) {
        const float first = x[2 * i];
        const float second = x[2 * i + 1];
        x[2 * i] = canonical(first * cosine[i] - second * sine[i]);
        x[2 * i + 1] = canonical(second * cosine[i] + first * sine[i]);
    }
}

void rope(float* x, int heads, int stride, int dim, bool pairs, const float* cosine, const float* sine) {
    for (int head = 0; head < heads; ++head) {
        float* values = x + static_cast<size_t>(head) * static_cast<size_t>(stride);
        if (pairs)
            rope_pairs(values, dim / 2, cosine, sine);
        else
            rope_halves(values, dim / 2, cosine, sine);
    }
}

void merge(const float* const* rows, const float* weights, int count, int n, float* y) {
    for_lanes(n, [&](int i, int lanes) {
        Lanes total = broadcast(0.0f);
        for (int j = 0; j < count; ++j) total = fma(broadcast(weights[j]), load_up_to(rows[j] + i, lanes), total);
        store_up_to(y + i, canonical(total), lanes);
    });
}

void store_cached(const float* x, int n, int stride, bool half, uint8_t* out) {
    for (int i = 0; i < stride; i += kLanes) {
        const int left = n - i;
        const Lanes value = left >= kLanes ? load(x + i) : load_first(x + i, left > 0 ? left : 0);
        if (half)
            store_half(reinterpret_cast<uint16_t*>(out) + i, canonical(value));
        else
            store(reinterpret_cast<float*>(out) + i, canonical(value));
    }
}

void store_key(const float* x, int n, int stride, bool half, uint8_t* out) {
    const size_t size = half ? 2 : 4;
    alignas(64) uint8_t run[kLanes * sizeof(float)];
    for (int i = 0; i < stride; i += kLanes) {
        store_cached(x + i, n - i, kLanes, half, run);
        for (int l = 0; l < kLanes; ++l, out += kLanes * size)
            std::memcpy(out, run + static_cast<size_t>(l) * size, size);
    }
}

}  // namespace
}  // namespace freetoken
