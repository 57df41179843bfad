// Selective state spaces of channels (Mamba-1): a lane owns a channel, values of the state ascend.
#pragma once

#include <algorithm>

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

constexpr int kChannelsAhead = 1024;  // values that are fetched ahead
constexpr int kStepsAhead = 128;      // time steps found at once: one is a long chain, several take hardly longer

// Rows of a state whose exponentials are found side by side: as many as registers hold.
#if defined(__AVX512F__)
constexpr int kChannelRows = 4;
#else
constexpr int kChannelRows = 1;
#endif

// The time steps of sixteen heads or fewer.
inline Lanes time_steps(const SsmShape& shape, const float* dt, int head, int lanes) {
    const Lanes step = softplus(load_up_to(dt + head, lanes) + load_up_to(shape.dt_bias + head, lanes));
    const Lanes low = max(broadcast(shape.dt_min), step);
    return shape.dt_max > 0.0f ? min(broadcast(shape.dt_max), low) : low;
}

// What one token is to a block of channels, and the sums of its outputs.
struct ChannelsToken {
    Lanes step;
    Lanes input;
    const float* b;
    const float* c;
    Lanes total;
};

// Some rows of a block's state, of `lanes` channels each; whether a value is a number is not looked at.
template <int rows>
inline void channel_rows(ChannelsToken& token, const float* a, float* state, int i, int lanes) {
    Lanes kept[rows];
    for (int r = 0; r < rows; ++r) {
        // Steps are not below zero and rates are: no product is above 88.
        kept[r] = max(broadcast(-87.0f), token.step * load_up_to(a + r * lanes, lanes));
        __builtin_prefetch(a + r * lanes + kChannelsAhead, 0, 2);
        __builtin_prefetch(state + r * lanes + kChannelsAhead, 0, 2);
    }
    exps_of_clamped(kept);
    for (int r = 0; r < rows; ++r) {
        float* const row = state + r * lanes;
        const Lanes value = fma(token.input, broadcast(token.b[i + r]), load_up_to(row, lanes) * kept[r]);
        store_up_to(row, value, lanes);
        token.total = fma(broadcast(token.c[i + r]), value, token.total);
    }
}

// A block of sixteen channels or fewer at one token.
inline void ssm_block(const SsmShape& shape, const SsmRun& run, int t, int channel, int lanes, Lanes step) {
    const int n = shape.state_dim;
    const size_t first = static_cast<size_t>(channel) * static_cast<size_t>(n);
    const float* const a = shape.a + first;
    float* const state = run.state + first;
    const Lanes x = load_up_to(run.x.row(t) + channel, lanes);
    ChannelsToken token = {step, step * x, run.b.row(t), run.c.row(t), broadcast(0.0f)};
    int i = 0;
    if (lanes == kLanes)
        for (; i + kChannelRows <= n; i += kChannelRows)
            channel_rows<kChannelRows>(token, a + i * kLanes, state + i * kLanes, i, kLanes);
    for (; i < n; ++i) channel_rows<1>(token, a + i * lanes, state + i * lanes, i, lanes);
    // Where a value is no number, its sum is none.
    if (!all_numbers(token.total))
        for_lanes(n * lanes, [&](int j, int count) {
            store_up_to(state + j, canonical(load_up_to(state + j, count)), count);
        });
    const Lanes d = load_up_to(shape.d + channel, lanes);
    store_up_to(run.y.row(t) + channel, canonical(fma(d, x, token.total)), lanes);
}

inline void ssm_channels(const SsmShape& shape, const SsmRun& run, int t) {
    alignas(64) float steps[kStepsAhead];
    for (int done = 0; done < run.heads; done += kStepsAhead) {
        const int channel = run.head + done;
        const int count = std::min(kStepsAhead, run.heads - done);
        for_lanes(count, [&](int i, int lanes) {
            store(steps + i, canonical(time_steps(shape, run.dt.row(t), channel + i, lanes)));
        });
        for_lanes(count, [&](int i, int lanes) { ssm_block(shape, run, t, channel + i, lanes, load(steps + i)); });
    }
}

}  // namespace
}  // namespace freetoken
