// Entries that each stand for several tokens: a mean of their values, each channel weighted by a softmax of its own.
#pragma once

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

// A softmax that goes on: the largest gate, the sum of exponentials below it, and that of values weighted by them.
struct RunningMean {
    Lanes largest = broadcast(-__builtin_inff());
    Lanes sum = broadcast(0.0f);
    Lanes values = broadcast(0.0f);

    void take(Lanes gate, Lanes value) {
        const Lanes most = max(gate, largest);
        const Lanes kept = exp(largest - most);
        const Lanes own = exp(gate - most);
        largest = most;
        sum = fma(sum, kept, own);
        values = fma(own, value, values * kept);
    }
};

RunningMean load_mean(const float* state, size_t stride, int lanes) {
    return {load_up_to(state, lanes), load_up_to(state + stride, lanes), load_up_to(state + 2 * stride, lanes)};
}

void store_mean(const RunningMean& mean, float* state, size_t stride, int lanes) {
    store_up_to(state, mean.largest, lanes);
    store_up_to(state + stride, mean.sum, lanes);
    store_up_to(state + 2 * stride, mean.values, lanes);
}

template <bool kOverlap>
void compress_channels(const CompressRun& run, int i, int lanes) {
    const size_t dim = run.dim;
    const size_t own = kOverlap ? dim : 0;  // where a token's values for its own entry lie
    float* const ahead_state = run.state + 3 * dim + static_cast<size_t>(i);
    RunningMean mean = load_mean(run.state + i, dim, lanes);
    RunningMean ahead;
    if constexpr (kOverlap) ahead = load_mean(ahead_state, dim, lanes);
    for (int t = 0; t < run.tokens; ++t) {
        const int position = run.position + t;
        const int place = position % run.every;
        if (place == 0) {
            mean = kOverlap && position > 0 ? ahead : RunningMean();
            ahead = RunningMean();
        }
        const float* gates = run.gate.row(t) + i;
        const float* values = run.kv.row(t) + i;
        const float* bias = run.bias + static_cast<size_t>(place) * (kOverlap ? 2 * dim : dim) + static_cast<size_t>(i);
        mean.take(load_up_to(gates + own, lanes) + load_up_to(bias + own, lanes), load_up_to(values + own, lanes));
        if constexpr (kOverlap)
            ahead.take(load_up_to(gates, lanes) + load_up_to(bias, lanes), load_up_to(values, lanes));
        const Lanes entry = place == run.every - 1 ? canonical(mean.values / mean.sum) : broadcast(0.0f);
        store_up_to(run.entry.row(t) + i, entry, lanes);
    }
    store_mean(mean, run.state + i, dim, lanes);
    if constexpr (kOverlap) store_mean(ahead, ahead_state, dim, lanes);
}

void compress(const CompressRun& run) {
    for_lanes(run.channels, [&](int i, int lanes) {
        if (run.overlap)
            compress_channels<true>(run, i, lanes);
        else
            compress_channels<false>(run, i, lanes);
    });
}

}  // namespace
}  // namespace freetoken
