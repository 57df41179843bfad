// The gated delta rule: a lane owns a value column, key channels ascend.
#pragma once

#include <algorithm>

#include "core/lanes.h"
#include "ops/recurrences.h"

namespace freetoken {
namespace {

constexpr int kDeltaColumns = 128;  // that take both passes over the state together

// Vectors of columns whose sums stay in registers together, in the first pass and in the second.
#if defined(__AVX512F__)
constexpr int kRecallVectors = 8;
constexpr int kLearnVectors = 8;
#elif defined(__AVX2__)
constexpr int kRecallVectors = 4;
constexpr int kLearnVectors = 2;
#else
constexpr int kRecallVectors = 1;
constexpr int kLearnVectors = 1;
#endif

// Fetches what lies behind a state from memory while the state is worked on, most often that of the next head. It goes
// evenly through both passes: in a burst it would wait for memory, and the work with it.
struct Ahead {
    const float* next = nullptr;  // null: nothing is fetched

    template <int vectors>
    void fetch() {
        if (next == nullptr) return;
        for (int line = 0; line < vectors / 2; ++line) __builtin_prefetch(next + line * kLanes, 0, 2);
        next += vectors / 2 * kLanes;
    }
};

// What one token is to some columns of a head.
struct DeltaToken {
    const float* q;
    const float* k;
    const float* v;
    const float* kept;   // [k_dim] factors of the old state
    const float* known;  // [k_dim] k as it meets the old state
    Lanes beta;
    Lanes scale;
    float* state;
    float* recalled;      // [kDeltaColumns], where there is a correction
    const float* update;  // what the columns learn: that, or v
    float* o;
};

// update = beta (v - S^T known) of columns [column, column + 16 * vectors).
template <int vectors>
inline void recall(const DeltaRun& run, const DeltaToken& token, int column, Ahead& later) {
    Ahead ahead = later;
    Lanes sums[vectors];
    for (Lanes& sum : sums) sum = broadcast(0.0f);
    const float* row = token.state + column;
    for (int i = 0; i < run.k_dim; ++i, row += run.state_stride) {
        const Lanes known = broadcast(token.known[i]);
        ahead.fetch<vectors>();
        for (int j = 0; j < vectors; ++j) sums[j] = fma(load(row + j * kLanes), known, sums[j]);
    }
    for (int j = 0; j < vectors; ++j) {
        const int at = column + j * kLanes;
        store(token.recalled + at, token.beta * (load(token.v + at) - sums[j]));
    }
    later = ahead;
}

// S = kept S + k update^T, o = scale S^T q of columns [column, column + 16 * vectors).
template <int vectors>
inline void learn(const DeltaRun& run, const DeltaToken& token, int column, Ahead& later) {
    Ahead ahead = later;
    Lanes update[vectors], sums[vectors];
    for (int j = 0; j < vectors; ++j) {
        update[j] = load(token.update + column + j * kLanes);
        sums[j] = broadcast(0.0f);
    }
    float* row = token.state + column;
    for (int i = 0; i < run.k_dim; ++i, row += run.state_stride) {
        const Lanes kept = broadcast(token.kept[i]);
        const Lanes k = broadcast(token.k[i]);
        const Lanes q = broadcast(token.q[i]);
        ahead.fetch<vectors>();
        for (int j = 0; j < vectors; ++j) {
            const Lanes value = canonical(fma(k, update[j], load(row + j * kLanes) * kept));
            store(row + j * kLanes, value);
            sums[j] = fma(value, q, sums[j]);
        }
    }
    for (int j = 0; j < vectors; ++j) store(token.o + column + j * kLanes, canonical(token.scale * sums[j]));
    later = ahead;
}

// Both for the last columns, fewer than a vector.
inline void last_columns(const DeltaRun& run, const DeltaToken& token, int column, int lanes) {
    float* const state = token.state + column;
    Lanes sum = broadcast(0.0f);
    for (int i = 0; run.corrects && i < run.k_dim; ++i) {
        const Lanes old = load_first(state + static_cast<size_t>(i) * run.state_stride, lanes);
        sum = fma(old, broadcast(token.known[i]), sum);
    }
    const Lanes v = load_first(token.v + column, lanes);
    const Lanes update = run.corrects ? token.beta * (v - sum) : v;
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

// Some columns of one token. The state is read twice, the second time from a cache, and written once.
inline void delta_columns(const DeltaRun& run, const DeltaToken& token, int columns, Ahead& ahead) {
    const int whole = columns / kLanes * kLanes;
    int column = 0;
    if (run.corrects) {
        for (; column + kRecallVectors * kLanes <= columns; column += kRecallVectors * kLanes)
            recall<kRecallVectors>(run, token, column, ahead);
        for (; column + kLanes <= columns; column += kLanes) recall<1>(run, token, column, ahead);
        column = 0;
    }
    for (; column + kLearnVectors * kLanes <= whole; column += kLearnVectors * kLanes)
        learn<kLearnVectors>(run, token, column, ahead);
    for (; column < whole; column += kLanes) learn<1>(run, token, column, ahead);
    if (whole < columns) last_columns(run, token, whole, columns - whole);
}

void delta_rule(const DeltaRun& run) {
    alignas(64) float kept[kMostKeyChannels], known[kMostKeyChannels], recalled[kDeltaColumns];
    Ahead ahead;
    if (run.tokens == 1 && static_cast<size_t>(run.columns) == run.state_stride)
        ahead.next = run.state + static_cast<size_t>(run.k_dim) * run.state_stride;
    for (int t = 0; t < run.tokens; ++t) {
        const float* decay = run.decay.row(t);
        const float* k = run.k.row(t);
        const Lanes one = exp(broadcast(*decay));
        for_lanes(run.k_dim, [&](int i, int lanes) {
            const Lanes factor = run.channelwise ? exp(load_up_to(decay + i, lanes)) : one;
            store_up_to(kept + i, factor, lanes);
            store_up_to(known + i, factor * load_up_to(k + i, lanes), lanes);
        });
        const Lanes beta = broadcast(run.corrects ? sigmoid(*run.beta.row(t)) : 1.0f);
        for (int column = 0; column < run.columns; column += kDeltaColumns) {
            const float* v = run.v.row(t) + column;
            const DeltaToken token = {run.q.row(t),         k,
                                      v,                    kept,
                                      known,                beta,
                                      broadcast(run.scale), run.state + column,
                                      recalled,             run.corrects ? recalled : v,
                                      run.o.row(t) + column};
            delta_columns(run, token, std::min(kDeltaColumns, run.columns - column), ahead);
        }
    }
}

}  // namespace
}  // namespace freetoken
