// The gated units of vector tables: the arithmetic of core/gated_unit.h, sixteen values at a time. Compiled once for every instruction set, as core/lanes.h is.
#pragma once

#include "core/lanes.h"
#include "kernels/kernels.h"

namespace freetoken {
namespace {

Lanes gelu_tanh(Lanes gate) {
    return gate / (broadcast(1.0f) + exp(-(gate * fma(gate * gate, broadcast(0.0713548163f), broadcast(1.59576912f)))));
}

Lanes gelu(Lanes gate) {
    const Lanes below = min(gate, -gate);
    const Lanes t = broadcast(1.0f) / fma(below, broadcast(-0.25f), broadcast(1.0f));
    Lanes p = broadcast(kHalfErfc[0]);
    for (int i = 1; i < 10; ++i) p = fma(p, t, broadcast(kHalfErfc[i]));
    const Lanes tail = below * t * p * exp(broadcast(-0.5f) * gate * gate);
    return max(broadcast(0.0f), gate) + tail;
}

Lanes limited(Lanes up, float limit) {
    return max(broadcast(-limit), min(broadcast(limit), up));
}

Lanes clamped_silu(const Glu& glu, Lanes gate, Lanes up) {
    const Lanes one = broadcast(1.0f);
    const Lanes g = min(broadcast(glu.limit), gate);
    return (limited(up, glu.limit) + one) * (g / (one + exp(-(broadcast(glu.alpha) * g))));
}

Lanes limited_silu(const Glu& glu, Lanes gate, Lanes up) {
    const Lanes g = min(broadcast(glu.limit), gate);
    return g / (broadcast(1.0f) + exp(-g)) * limited(up, glu.limit);
}

Lanes capped_silu(const Glu& glu, Lanes gate, Lanes up) {
    const Lanes open = gate / (broadcast(1.0f) + exp(-gate));
    return min(broadcast(glu.limit), open) * limited(up, glu.limit);
}

Lanes glu_lanes(const Glu& glu, Lanes gate, Lanes up) {
    switch (glu.kind) {
        case GluKind::silu:
            return canonical(gate / (broadcast(1.0f) + exp(-gate)) * up);
        case GluKind::clamped_silu:
            return canonical(clamped_silu(glu, gate, up));
        case GluKind::limited_silu:
            return canonical(limited_silu(glu, gate, up));
        case GluKind::capped_silu:
            return canonical(capped_silu(glu, gate, up));
        case GluKind::gelu_tanh:
            return canonical(gelu_tanh(gate) * up);
        case GluKind::gelu:
            return canonical(gelu(gate) * up);
        case GluKind::relu2:
            break;
    }
    const Lanes open = max(broadcast(0.0f), up);
    return canonical(open * open);
}

void glu_rows(const Glu& glu, const float* gate, const float* up, int n, float* h) {
    for_lanes(n, [&](int i, int lanes) {
        const Lanes second = load_up_to(up + i, lanes);
        const Lanes first = gate != nullptr ? load_up_to(gate + i, lanes) : second;
        store_up_to(h + i, glu_lanes(glu, first, second), lanes);
    });
}

void glu_tiles(const Glu& glu, const float* gate_up, const float* gate_bias, const float* up_bias, int n, float* h) {
    static_assert(kLanes == kTileRows);
    for_lanes(n, [&](int i, int lanes) {
        Lanes gate = load_up_to(gate_up + 2 * i, lanes);
        Lanes up = load_up_to(gate_up + 2 * i + kTileRows, lanes);
        if (gate_bias != nullptr) gate = gate + load_up_to(gate_bias + i, lanes);
        if (up_bias != nullptr) up = up + load_up_to(up_bias + i, lanes);
        store_up_to(h + i, glu_lanes(glu, gate, up), lanes);
    });
}

}  // namespace
}  // namespace freetoken
