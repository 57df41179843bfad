// A causal convolution of every channel by itself: a lane owns a channel.
#pragma once

#include "core/lanes.h"
#include "ops/gates.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

// Sixteen channels or fewer of one token; their history moves on by one input.
void convolve_lanes(const ConvRun& run, int t, int c, int lanes) {
    const Lanes x = load_up_to(run.x.row(t) + c, lanes);
    const float* w = run.w + c;
    float* past = run.history + c;
    Lanes total = run.bias != nullptr ? load_up_to(run.bias + c, lanes) : broadcast(0.0f);
    for (int j = 0; j + 1 < run.kernel; ++j) {
        const Lanes input = load_up_to(past, lanes);
        if (j > 0) store_up_to(past - run.w_stride, input, lanes);
        total = fma(load_up_to(w, lanes), input, total);
        past += run.w_stride;
        w += run.w_stride;
    }
    if (run.kernel > 1) store_up_to(past - run.w_stride, canonical(x), lanes);
    total = fma(load_up_to(w, lanes), x, total);
    store_up_to(run.y.row(t) + c, canonical(activated(run.activation, total)), lanes);
}

void conv(const ConvRun& run) {
    for (int t = 0; t < run.tokens; ++t)
        for_lanes(run.channels, [&](int c, int lanes) { convolve_lanes(run, t, c, lanes); });
}

}  // namespace
}  // namespace freetoken
