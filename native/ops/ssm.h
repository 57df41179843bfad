// Selective state spaces (Mamba): a row of the state belongs to one value of a head; the output is a lane sum over it.
#pragma once

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

// One row of the state. `kept(n, lanes)`: the factors of its old values. Returns the sum over n of C[n] S[n].
template <class Kept>
inline float ssm_row(float* state, const float* b, const float* c, Lanes input, int n, Kept kept) {
    Lanes total = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) {
        const Lanes old = load_up_to(state + i, lanes) * kept(i, lanes);
        const Lanes value = canonical(fma(input, load_up_to(b + i, lanes), old));
        store_up_to(state + i, value, lanes);
        total = fma(load_up_to(c + i, lanes), value, total);
    });
    return sum(total);
}

inline float time_step(const SsmShape& shape, float dt, int head) {
    const float step = softplus(dt + shape.dt_bias[head]);
    const float low = shape.dt_min > step ? shape.dt_min : step;
    return shape.dt_max > 0.0f && shape.dt_max < low ? shape.dt_max : low;
}

void ssm_head(const SsmShape& shape, const SsmRun& run, int t, int head) {
    const int n = shape.state_dim;
    const float step = time_step(shape, run.dt.row(t)[head], head);
    const auto group = static_cast<size_t>(head / (shape.heads / shape.groups));
    const float* b = run.b.row(t) + group * static_cast<size_t>(n);
    const float* c = run.c.row(t) + group * static_cast<size_t>(n);
    const size_t first =
        static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) + static_cast<size_t>(run.first);
    const float* x = run.x.row(t) + first;
    float* y = run.y.row(t) + first;
    float* state = run.state + first * static_cast<size_t>(n);
    const float* a = shape.a + static_cast<size_t>(head) * static_cast<size_t>(shape.by_channel ? n : 1);
    const Lanes lasting = broadcast(exp(step * *a));
    for (int p = 0; p < run.rows; ++p, state += n) {
        const Lanes input = broadcast(step * x[p]);
        const float total =
            shape.by_channel
                ? ssm_row(state, b, c, input, n,
                          [&](int i, int lanes) { return exp(broadcast(step) * load_up_to(a + i, lanes)); })
                : ssm_row(state, b, c, input, n, [&](int, int) { return lasting; });
        y[p] = canonical(fma(shape.d[head], x[p], total));
    }
}

void ssm(const SsmShape& shape, const SsmRun& run) {
    for (int t = 0; t < run.tokens; ++t)
        for (int head = run.head; head < run.head + run.heads; ++head) ssm_head(shape, run, t, head);
}

}  // namespace
}  // namespace freetoken
