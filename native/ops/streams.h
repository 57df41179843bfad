// A residual stream that is several: every one takes its share of a part, and a mixture of all (docs/numerics.md).
#pragma once

#include "core/lanes.h"
#include "ops/ops.h"

namespace freetoken {
namespace {

void weights_of_streams(const StreamShape& shape, const float* base, const float* scale, float* weights) {
    stream_weights(shape, base, scale, weights);
}

void expand_streams(int streams, int n, const float* part, const float* weights, float* x) {
    const float* post = weights + streams;
    const float* comb = post + streams;
    const auto at = [=](int stream, int i) { return x + static_cast<size_t>(stream) * static_cast<size_t>(n) + i; };
    for_lanes(n, [&](int i, int lanes) {
        Lanes before[kMostStreams];
        for (int s = 0; s < streams; ++s) before[s] = load_up_to(at(s, i), lanes);
        const Lanes added = load_up_to(part + i, lanes);
        for (int to = 0; to < streams; ++to) {
            Lanes sum = broadcast(post[to]) * added;
            for (int s = 0; s < streams; ++s) sum = fma(broadcast(comb[s * streams + to]), before[s], sum);
            store_up_to(at(to, i), canonical(sum), lanes);
        }
    });
}

}  // namespace
}  // namespace freetoken
