// The gated units of vector tables: the arithmetic of silu_glu and clamped_silu_glu in core/numerics.h, sixteen values
// at a time. Compiled once for every instruction set, as core/lanes.h is.
#pragma once

#include "core/lanes.h"
#include "kernels/kernels.h"

namespace freetoken {
namespace {

Lanes glu_lanes(const Glu& glu, Lanes gate, Lanes up) {
    const Lanes one = broadcast(1.0f);
    if (glu.kind == GluKind::silu) return canonical(gate / (one + exp(-gate)) * up);
    if (glu.kind == GluKind::relu2) {
        const Lanes open = max(broadcast(0.0f), up);
        return canonical(open * open);
    }
    const Lanes g = min(broadcast(glu.limit), gate);
    const Lanes u = max(broadcast(-glu.limit), min(broadcast(glu.limit), up));
    if (glu.kind == GluKind::limited_silu) return canonical(g / (one + exp(-g)) * u);
    return canonical((u + one) * (g / (one + exp(-(broadcast(glu.alpha) * g)))));
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
