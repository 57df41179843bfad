// Gates, decays and norms around recurrences, one row at a time.
#pragma once

#include <cmath>

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

inline Lanes activated(GateKind kind, Lanes x) {
    switch (kind) {
        case GateKind::silu:
            return silu(x);
        case GateKind::sigmoid:
            return sigmoid(x);
        case GateKind::softplus:
            return softplus(x);
        default:
            return x;
    }
}

Lanes squares_of(const float* x, int n) {
    Lanes squares = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) {
        const Lanes value = load_up_to(x + i, lanes);
        squares = fma(value, value, squares);
    });
    return squares;
}

void l2_norm(const float* x, float eps, int n, float* y) {
    const Lanes r = broadcast(1.0f / std::sqrt(sum(squares_of(x, n)) + eps));
    for_lanes(n, [&](int i, int lanes) { store_up_to(y + i, canonical(load_up_to(x + i, lanes) * r), lanes); });
}

void decay(const float* x, const float* a, const float* bias, float bound, int n, float* g) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes shifted = load_up_to(x + i, lanes) + load_up_to(bias + i, lanes);
        const Lanes rate = load_up_to(a + i, lanes);
        const Lanes kept = bound != 0.0f ? broadcast(bound) * sigmoid(broadcast(0.0f) - rate * shifted)
                                         : rate * softplus(shifted);
        store_up_to(g + i, canonical(kept), lanes);
    });
}

void gate(GateKind kind, const float* x, const float* g, bool one, int n, float* y) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes open = activated(kind, one ? broadcast(*g) : load_up_to(g + i, lanes));
        store_up_to(y + i, canonical(open * load_up_to(x + i, lanes)), lanes);
    });
}

void gated_norm(GateKind kind, bool gate_first, const float* x, const float* g, const float* w, float eps, int n,
                float* y) {
    if (gate_first) {
        gate(kind, x, g, false, n, y);
        x = y;
    }
    const Lanes r = broadcast(1.0f / std::sqrt(sum(squares_of(x, n)) / static_cast<float>(n) + eps));
    for_lanes(n, [&](int i, int lanes) {
        Lanes value = load_up_to(x + i, lanes) * r * load_up_to(w + i, lanes);
        if (!gate_first) value = value * activated(kind, load_up_to(g + i, lanes));
        store_up_to(y + i, canonical(value), lanes);
    });
}

void relu2(const float* x, int n, float* y) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes positive = max(broadcast(0.0f), load_up_to(x + i, lanes));
        store_up_to(y + i, canonical(positive * positive), lanes);
    });
}

}  // namespace
}  // namespace freetoken
