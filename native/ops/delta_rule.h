// The gated delta rule: a lane owns a value column, key channels ascend.
#pragma once

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

// Vectors of columns whose sums stay in registers together.
#if defined(__AVX512F__)
constexpr int kDeltaVectors = 8;
#elif defined(__AVX2__)
constexpr int kDeltaVectors = 2;
#else
constexpr int kDeltaVectors = 1;
#endif

// What one token is to all columns of a head.
struct DeltaToken {
    const float* q;
    const float* k;
    const float* v;
    float* o;
    const float* kept;   // [k_dim] factors of the old state
    const float* known;  // [k_dim] k as it meets the old state
    Lanes beta;
    Lanes scale;
};

// Columns [column, column + 16 * vectors) of one token. The state is read twice, the second time from a cache, and
// written once. A run of one token fetches what lies behind it meanwhile, which is most often the next head.
template <int vectors>
void delta_columns(const DeltaRun& run, const DeltaToken& token, int column) {
    float* const state = run.state + column;
    Lanes sums[vectors];
    for (Lanes& sum : sums) sum = broadcast(0.0f);
    const float* row = state;
    for (int i = 0; i < run.k_dim; ++i, row += run.state_stride) {
        const Lanes known = broadcast(token.known[i]);
        for (int j = 0; j < vectors; ++j) sums[j] = fma(load(row + j * kLanes), known, sums[j]);
    }
    Lanes update[vectors];
    for (int j = 0; j < vectors; ++j) {
        update[j] = token.beta * (load(token.v + column + j * kLanes) - sums[j]);
        sums[j] = broadcast(0.0f);
    }
    float* out = state;
    const bool ahead = run.tokens == 1;
    const size_t next = static_cast<size_t>(run.k_dim) * run.state_stride;
    for (int i = 0; i < run.k_dim; ++i, out += run.state_stride) {
        const Lanes kept = broadcast(token.kept[i]);
        const Lanes k = broadcast(token.k[i]);
        const Lanes q = broadcast(token.q[i]);
        for (int j = 0; j < vectors; ++j) {
            const Lanes value = canonical(fma(k, update[j], load(out + j * kLanes) * kept));
            store(out + j * kLanes, value);
            if (ahead) __builtin_prefetch(out + j * kLanes + next, 0, 2);
            sums[j] = fma(value, q, sums[j]);
        }
    }
    for (int j = 0; j < vectors; ++j) store(token.o + column + j * kLanes, canonical(token.scale * sums[j]));
}

// The last columns, fewer than a vector.
void delta_last_columns(const DeltaRun& run, const DeltaToken& token, int column, int lanes) {
    float* const state = run.state + column;
    Lanes sum = broadcast(0.0f);
    for (int i = 0; i < run.k_dim; ++i) {
        const Lanes old = load_first(state + static_cast<size_t>(i) * run.state_stride, lanes);
        sum = fma(old, broadcast(token.known[i]), sum);
    }
    const Lanes update = token.beta * (load_first(token.v + column, lanes) - sum);
    sum = broadcast(0.0f);
    for (int i = 0; i < run.k_dim; ++i) {
        float* const row = state + static_cast<size_t>(i) * run.state_stride;
        const Lanes old = load_first(row, lanes) * broadcast(token.kept[i]);
        const Lanes value = canonical(fma(broadcast(token.k[i]), update, old));
        store_first(row, value, lanes);
        sum = fma(value, broadcast(token.q[i]), sum);
    }
    store_first(token.o + column, canonical(token.scale * sum), lanes);
}

void delta_rule(const DeltaRun& run) {
    alignas(64) float kept[kMostKeyChannels], known[kMostKeyChannels];
    for (int t = 0; t < run.tokens; ++t) {
        const float* decay = run.decay.row(t);
        const float* k = run.k.row(t);
        const Lanes one = exp(broadcast(*decay));
        for_lanes(run.k_dim, [&](int i, int lanes) {
            const Lanes factor = run.channelwise ? exp(load_up_to(decay + i, lanes)) : one;
            store_up_to(kept + i, factor, lanes);
            store_up_to(known + i, factor * load_up_to(k + i, lanes), lanes);
        });
        const DeltaToken token = {
            run.q.row(t),        k, run.v.row(t), run.o.row(t), kept, known, broadcast(sigmoid(*run.beta.row(t))),
            broadcast(run.scale)};
        int column = 0;
        for (; column + kDeltaVectors * kLanes <= run.columns; column += kDeltaVectors * kLanes)
            delta_columns<kDeltaVectors>(run, token, column);
        if constexpr (kDeltaVectors > 2) {
            for (; column + 2 * kLanes <= run.columns; column += 2 * kLanes) delta_columns<2>(run, token, column);
        }
        for (; column + kLanes <= run.columns; column += kLanes) delta_columns<1>(run, token, column);
        if (column < run.columns) delta_last_columns(run, token, column, run.columns - column);
    }
}

}  // namespace
}  // namespace freetoken
