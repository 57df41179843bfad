// Selective state spaces (Mamba): a row of the state belongs to one value of a head; the output is a lane sum over it.
#pragma once

#include <algorithm>

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

constexpr int kSsmRows = 2;      // whose sums are found side by side
constexpr int kSsmAhead = 1024;  // values that are fetched ahead: processors follow several rows late

// Rows of one head's state at one token. `kept(i, lanes)`: the factors of old values i, i + 1, ...
template <int rows, class Kept>
inline void ssm_rows(const SsmShape& shape, const float* b, const float* c, float step, float d, Kept kept,
                     const float* x, float* state, float* y) {
    const int n = shape.state_dim;
    Lanes inputs[rows], totals[rows];
    for (int r = 0; r < rows; ++r) {
        inputs[r] = broadcast(step * x[r]);
        totals[r] = broadcast(0.0f);
    }
    for_lanes(n, [&](int i, int lanes) {
        const Lanes factors = kept(i, lanes);
        const Lanes in = load_up_to(b + i, lanes);
        const Lanes out = load_up_to(c + i, lanes);
        for (int r = 0; r < rows; ++r) {
            float* const values = state + r * n + i;
            const Lanes value = canonical(fma(inputs[r], in, load_up_to(values, lanes) * factors));
            store_up_to(values, value, lanes);
            __builtin_prefetch(values + kSsmAhead, 0, 2);
            totals[r] = fma(out, value, totals[r]);
        }
    });
    for (int r = 0; r < rows; ++r) y[r] = canonical(fma(d, x[r], sum(totals[r])));
}

template <class Kept>
inline void ssm_head(const SsmShape& shape, const SsmRun& run, int t, int head, float step, Kept kept) {
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
    int row = 0;
    for (; row + kSsmRows <= run.rows; row += kSsmRows, state += kSsmRows * n)
        ssm_rows<kSsmRows>(shape, b, c, step, d, kept, x + row, state, y + row);
    for (; row < run.rows; ++row, state += n) ssm_rows<1>(shape, b, c, step, d, kept, x + row, state, y + row);
}

// The sums of sixteen runs, lane r that of totals[r].
inline Lanes sums_of(const Lanes (&totals)[kLanes]) {
#if defined(__AVX512F__)
    return sums(totals);
#else
    alignas(64) float values[kLanes];
    for (int r = 0; r < kLanes; ++r) values[r] = sum(totals[r]);
    return load(values);
#endif
}

// Sixteen heads of one value each, which share B and C: those of Mamba-1.
inline void ssm_channels(const SsmShape& shape, const SsmRun& run, int t, int head, Lanes step) {
    const int n = shape.state_dim;
    const Lanes x = load(run.x.row(t) + head);
    const float* b = run.b.row(t);
    const float* c = run.c.row(t);
    const size_t first = static_cast<size_t>(head) * static_cast<size_t>(n);
    float* state = run.state + first;
    const float* a = shape.a + first;
    alignas(64) float steps[kLanes], inputs[kLanes];
    store(steps, step);
    store(inputs, step * x);
    Lanes totals[kLanes];
    for (int r = 0; r < kLanes; ++r, state += n, a += n) {
        totals[r] = broadcast(0.0f);
        const Lanes own = broadcast(steps[r]);
        const Lanes input = broadcast(inputs[r]);
        for_lanes(n, [&](int i, int lanes) {
            const Lanes factors = exp(own * load_up_to(a + i, lanes));
            const Lanes value = canonical(fma(input, load_up_to(b + i, lanes), load_up_to(state + i, lanes) * factors));
            store_up_to(state + i, value, lanes);
            totals[r] = fma(load_up_to(c + i, lanes), value, totals[r]);
        });
    }
    store(run.y.row(t) + head, canonical(fma(load(shape.d + head), x, sums_of(totals))));
}

// The time steps of sixteen heads or fewer.
inline Lanes time_steps(const SsmShape& shape, const float* dt, int head, int lanes) {
    const Lanes step = softplus(load_up_to(dt + head, lanes) + load_up_to(shape.dt_bias + head, lanes));
    const Lanes low = max(broadcast(shape.dt_min), step);
    return shape.dt_max > 0.0f ? min(broadcast(shape.dt_max), low) : low;
}

void ssm_heads(const SsmShape& shape, const SsmRun& run, int t, int begin, int count) {
    alignas(64) float steps[kLanes], factors[kLanes];
    const Lanes step = time_steps(shape, run.dt.row(t), begin, count);
    if (shape.by_channel && shape.head_dim == 1 && shape.groups == 1 && count == kLanes) {
        ssm_channels(shape, run, t, begin, step);
        return;
    }
    store(steps, step);
    if (!shape.by_channel) store(factors, exp(step * load_up_to(shape.a + begin, count)));
    for (int i = 0; i < count; ++i) {
        const int head = begin + i;
        if (shape.by_channel) {
            const float* a = shape.a + static_cast<size_t>(head) * static_cast<size_t>(shape.state_dim);
            ssm_head(shape, run, t, head, steps[i],
                     [&, own = broadcast(steps[i])](int n, int lanes) { return exp(own * load_up_to(a + n, lanes)); });
        } else {
            ssm_head(shape, run, t, head, steps[i], [factor = broadcast(factors[i])](int, int) { return factor; });
        }
    }
}

void ssm(const SsmShape& shape, const SsmRun& run) {
    const int end = run.head + run.heads;
    for (int t = 0; t < run.tokens; ++t)
        for (int head = run.head; head < end; head += kLanes)
            ssm_heads(shape, run, t, head, std::min(kLanes, end - head));
}

}  // namespace
}  // namespace freetoken
