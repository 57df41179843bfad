// What opens a gate, by the number of GateKind in native/ops/recurrences.h.
#pragma once

#include "cuda/device.h"

namespace freetoken {

static inline float activated(int kind, float x) {
    return kind == 3 ? softplus(x) : kind == 2 ? x / (1.0f + exp(-x)) : kind == 1 ? sigmoid(x) : x;
}

// act(gate) * x, as it is stored
static inline float gated(int kind, float x, float gate) {
    return canonical(activated(kind, gate) * x);
}

}  // namespace freetoken
