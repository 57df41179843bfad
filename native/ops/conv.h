// A causal convolution of every channel by itself: a lane owns a channel.
#pragma once

#include "core/lanes.h"
#include "ops/gates.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

constexpr int kConvAhead = 2048;  // values that are fetched ahead

// A block of sixteen channels or fewer at one token; its history moves on by one input. `taps`: the length of the
// kernel, or 0 where it is not known to the compiler.
template <int taps>
inline void convolve_block(const ConvRun& run, int t, int channel, int lanes) {
    const int kernel = taps > 0 ? taps : run.kernel;
    const Lanes x = load_up_to(run.x.row(t) + channel, lanes);
    const float* w = run.w + static_cast<size_t>(channel) * static_cast<size_t>(kernel);
    float* past = run.history + static_cast<size_t>(channel) * static_cast<size_t>(kernel - 1);
    Lanes total = run.bias != nullptr ? load_up_to(run.bias + channel, lanes) : broadcast(0.0f);
    for (int j = 0; j + 1 < kernel; ++j, past += lanes, w += lanes) {
        const Lanes input = load_up_to(past, lanes);
        if (j > 0) store_up_to(past - lanes, input, lanes);
        __builtin_prefetch(past + kConvAhead, 0, 2);
        __builtin_prefetch(w + kConvAhead, 0, 2);
        total = fma(load_up_to(w, lanes), input, total);
    }
    __builtin_prefetch(w + kConvAhead, 0, 2);
    store_up_to(past - lanes, canonical(x), lanes);
    total = fma(load_up_to(w, lanes), x, total);
    store_up_to(run.y.row(t) + channel, canonical(activated(run.activation, total)), lanes);
}

template <int taps>
void convolve(const ConvRun& run) {
    for (int t = 0; t < run.tokens; ++t)
        for_lanes(run.channels, [&](int c, int lanes) { convolve_block<taps>(run, t, c, lanes); });
}

// Published convolutions have three or four inputs.
void conv(const ConvRun& run) {
    if (run.kernel == 4)
        convolve<4>(run);
    else if (run.kernel == 3)
        convolve<3>(run);
    else
        convolve<0>(run);
}

}  // namespace
}  // namespace freetoken
