// Selective state spaces of heads (Mamba-2): a row of the state belongs to one value of a head; the output is a lane
// sum over it.
#pragma once

#include <algorithm>

#include "core/lanes.h"
#include "ops/recurrences.h"
#include "ops/ssm_channels.h"

namespace freetoken {
namespace {

constexpr int kSsmRows = 2;      // whose sums are found side by side
constexpr int kSsmAhead = 1024;  // values that are fetched ahead: processors follow several rows late

// Rows of one head's state at one token, whose old values are multiplied by `kept`.
template <int rows>
inline void ssm_rows(const SsmShape& shape, const float* b, const float* c, float step, float d, Lanes kept,
                     const float* x, float* state, float* y) {
    const int n = shape.state_dim;
    Lanes inputs[rows], totals[rows];
    for (int r = 0; r < rows; ++r) {
        inputs[r] = broadcast(step * x[r]);
        totals[r] = broadcast(0.0f);
    }
    for_lanes(n, [&](int i, int lanes) {
        const Lanes in = load_up_to(b + i, lanes);
        const Lanes out = load_up_to(c + i, lanes);
        for (int r = 0; r < rows; ++r) {
            float* const values = state + r * n + i;
            const Lanes value = canonical(fma(inputs[r], in, load_up_to(values, lanes) * kept));
            store_up_to(values, value, lanes);
            __builtin_prefetch(values + kSsmAhead, 0, 2);
            totals[r] = fma(out, value, totals[r]);
        }
    });
    for (int r = 0; r < rows; ++r) y[r] = canonical(fma(d, x[r], sum(totals[r])));
}

inline void ssm_head(const SsmShape& shape, const SsmRun& run, int t, int head, float step, float kept) {
    const auto n = static_cast<size_t>(shape.state_dim);
    const size_t group = static_cast<size_t>(head / (shape.heads / shape.groups)) * n;
    const float* b = run.b.row(t) + group;
    const float* c = run.c.row(t) + group;
    const size_t first =
        static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) + static_cast<size_t>(run.first);
    const float* x = run.x.row(t) + first;
    float* y = run.y.row(t) + first;
    float* state = run.state + first * n;
    const float d = shape.d[head];
    const Lanes factor = broadcast(kept);
    int row = 0;
    for (; row + kSsmRows <= run.rows; row += kSsmRows, state += kSsmRows * n)
        ssm_rows<kSsmRows>(shape, b, c, step, d, factor, x + row, state, y + row);
    for (; row < run.rows; ++row, state += n) ssm_rows<1>(shape, b, c, step, d, factor, x + row, state, y + row);
}

// Sixteen heads or fewer.
inline void ssm_heads(const SsmShape& shape, const SsmRun& run, int t, int head, int count) {
    alignas(64) float steps[kLanes], kept[kLanes];
    const Lanes step = time_steps(shape, run.dt.row(t), head, count);
    store(steps, step);
    store(kept, exp(step * load_up_to(shape.a + head, count)));
    for (int i = 0; i < count; ++i) ssm_head(shape, run, t, head + i, steps[i], kept[i]);
}

void ssm(const SsmShape& shape, const SsmRun& run) {
    const int end = run.head + run.heads;
    for (int t = 0; t < run.tokens; ++t) {
        if (shape.by_channel)
            ssm_channels(shape, run, t);
        else
            for (int head = run.head; head < end; head += kLanes)
                ssm_heads(shape, run, t, head, std::min(kLanes, end - head));
    }
}

}  // namespace
}  // namespace freetoken
