// The operations besides products, as a table of functions for one instruction set; docs/design.md says what each
// means. All tables give the same bits (docs/numerics.md). Callers hold a FloatMode.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/streams.h"
#include "ops/recurrences.h"

namespace freetoken {

inline constexpr int kAttentionBlock = 256;  // positions that share one maximum; cut by absolute position
inline constexpr int kAttentionRows = 32;    // most (query, head) rows of one call
inline constexpr int kMostExperts = 4096;    // of one layer

// How far back an attention operation looks; 0: no such bound.
struct Sight {
    int window = 0;  // positions
    int chunk = 0;   // nothing before the last multiple of it

    // The oldest position that a token at `position` sees.
    int oldest(int position) const {
        const int by_window = window > 0 ? position - window + 1 : 0;
        const int by_chunk = chunk > 0 ? position - position % chunk : 0;
        return std::max({0, by_window, by_chunk});
    }
};

// Where entry `entry` of a cache lies that has one for every so many tokens: in the page of the last of them.
struct EntryPlace {
    int page;  // of the sequence's table
    int slot;
};

constexpr EntryPlace entry_place(int entry, int every, int page_tokens) {
    const int last = entry * every + every - 1;
    return {last / page_tokens, last % page_tokens / every};
}

// One kv head's keys and values in the cache, and how a row of queries looks at them.
struct AttentionShape {
    int k_dim = 0;
    int v_dim = 0;
    int k_stride = 0;  // values of a cached position, a multiple of 16; the padding is zero
    int v_stride = 0;
    bool latent = false;      // values are the first of the keys, which then lie by positions and not by dimensions
    int page_tokens = 0;      // a multiple of 16
    int every = 1;            // tokens that one entry of the cache stands for; more than one only where keys are latent
    size_t page_bytes = 0;    // between pages
    size_t k_head_bytes = 0;  // between the keys (values) of neighbouring kv heads in a page
    size_t v_head_bytes = 0;
    bool half = false;  // cached values are binary16 instead of binary32
    float scale = 1.0f;
    float softcap = 0.0f;  // 0: none; else scores become softcap * tanh(score / softcap)
    Sight sight;
    int chosen_run = 0;  // entries that each number of a selection stands for: a multiple of 16 unless keys are latent
};

// Consecutive queries of one sequence and some of the heads of one kv head, or one query and all heads of several
// neighbouring ones. Row r is query r / heads, head r % heads.
struct AttentionSpan {
    const float* q = nullptr;  // [queries][heads][k_dim]
    size_t q_stride = 0;       // values between queries
    int queries = 0;
    int heads = 0;               // of all kv heads together
    int kv_heads = 1;            // more than one only with one query
    int position = 0;            // of the first query
    const uint8_t* k = nullptr;  // the first kv head's keys in page 0
    const uint8_t* v = nullptr;
    const int32_t* pages = nullptr;  // page table of the sequence
    // Of one query alone: it sees so many entries, those of the runs that `chosen` numbers, in ascending order, all but
    // the last whole. Null: it sees what `sight` says.
    const int32_t* chosen = nullptr;
    int chosen_entries = 0;

    int rows() const { return queries * heads; }
};

// How an indexer compares queries with cached keys; docs/design.md has the arithmetic under `choose`.
struct IndexShape {
    int heads = 0;
    int k_dim = 0;
    int k_stride = 0;  // values of a cached key, a multiple of 16; the padding is zero
    bool half = false;
    bool weighted = false;  // one score for all heads together

    int sets() const { return weighted ? 1 : heads; }
};

// Some queries, and at most kAttentionBlock keys that lie anywhere.
struct IndexSpan {
    const float* q = nullptr;  // [queries][heads][k_dim]
    size_t q_stride = 0;       // values between queries
    const float* weights = nullptr;
    size_t weight_stride = 0;
    int queries = 0;
    const uint8_t* const* keys = nullptr;
    int entries = 0;
};

// Softmax of each row over some positions, not yet divided: o = sum exp(s - m) v, l = sum exp(s - m).
// An l below zero marks a row that has seen no position.
struct AttentionPart {
    float* m = nullptr;  // [rows]
    float* l = nullptr;  // [rows]
    float* o = nullptr;  // [rows][v_stride]
};

enum class Scoring : uint8_t { softmax, sigmoid, softmax_topk, sigmoid_topk, sqrt_softplus, sparse_mixer };

struct RouteShape {
    int experts = 0;
    int top_k = 0;
    Scoring scoring = Scoring::softmax;
    int groups = 1;
    int top_groups = 1;
    int group_top = 1;
    bool normalize = false;
    float scale = 1.0f;
    float jitter = 0.0f;                  // of sparse_mixer
    const float* bias = nullptr;          // [experts], for the choice only
    const float* expert_scale = nullptr;  // [experts], of weights, at last
};

struct Operations {
    const char* name;

    // y[i] = scale * y[i]
    void (*scale)(float* y, float scale, int n);

    // y[i] = scale * (y[i] + bias[i]); null bias: none.
    void (*bias_scale)(float* y, const float* bias, float scale, int n);

    // One group: y = x * (1 / sqrt(mean(x^2) + eps)) * w; null w: without it.
    void (*rms_norm)(const float* x, const float* w, float eps, int n, float* y);

    // One group: y = (x - mean) * (1 / sqrt(mean((x - mean)^2) + eps)) * w + bias; null bias: none.
    void (*layer_norm)(const float* x, const float* w, const float* bias, float eps, int n, float* y);

    // y[i] = x[i] cut to +-limit, or limit * tanh(x[i] / limit)
    void (*bound)(const float* x, float limit, bool smooth, int n, float* y);

    // y[i] = a[i] + scale * b[i]
    void (*add)(const float* a, const float* b, float scale, int n, float* y);

    // y[i] = sigmoid(gate) * x[i]
    void (*sigmoid_gate)(const float* x, float gate, int n, float* y);

    // Rotates the first `dim` values of each of `heads` runs, `stride` apart; cosine and sine hold dim / 2 values.
    void (*rope)(float* x, int heads, int stride, int dim, bool pairs, const float* cosine, const float* sine);

    // Chooses top_k of the experts. `scratch` holds 2 * experts + groups values.
    void (*route)(const RouteShape& shape, const float* logits, float* scratch, int32_t* ids, float* weights);

    // The weights that `route` would give to `ids`, had it chosen them. `scratch` holds `experts` values.
    void (*weigh)(const RouteShape& shape, const float* logits, float* scratch, const int32_t* ids, float* weights);

    // y[i] = sum over j ascending of weights[j] * rows[j][i], by fma from zero.
    void (*merge)(const float* const* rows, const float* weights, int count, int n, float* y);

    // Writes n values as cached values and zeroes up to `stride`; NaN in its one form.
    void (*store_cached)(const float* x, int n, int stride, bool half, uint8_t* out);

    // The same values sixteen apart: one position of sixteen whose keys lie side by side.
    void (*store_key)(const float* x, int n, int stride, bool half, uint8_t* out);

    // Values of `scratch` (64-byte aligned) that attend_block needs for a shape.
    size_t (*attention_scratch)(const AttentionShape& shape);

    // The part of positions [256 * block, 256 * block + 256) that each row may see; of a selection, its entries by
    // their places in it.
    void (*attend_block)(const AttentionShape& shape, const AttentionSpan& span, int block, float* scratch,
                         const AttentionPart& part);

    // Adds the part of a later block to `sum`.
    void (*merge_attention)(int rows, int v_stride, const AttentionPart& part, const AttentionPart& sum);

    // out[0..v_dim) = o / L of one row; `sink` joins L unless null.
    void (*finish_attention)(const float* sink, float m, float l, const float* o, int v_dim, float* out);

    // Values of `scratch` (64-byte aligned) that index_scores needs for so many queries.
    size_t (*index_scratch)(const IndexShape& shape, int queries);

    // scores[query * sets + set][kAttentionBlock] of all entries, and of nothing up to a multiple of 16.
    void (*index_scores)(const IndexShape& shape, const IndexSpan& span, float* scratch, float* scores);

    // One group: y = x * (1 / sqrt(sum(x^2) + eps)).
    void (*l2_norm)(const float* x, float eps, int n, float* y);

    // g[i] = a[i] * softplus(x[i] + bias[i])
    void (*decay)(const float* x, const float* a, const float* bias, float bound, int n, float* g);

    // y[i] = act(g[i]) * x[i]; with `one` g is a single value.
    void (*gate)(GateKind kind, const float* x, const float* g, bool one, int n, float* y);

    // One group: rms_norm(act(g) * x) * w where the gate is first, else rms_norm(x) * w * act(g).
    void (*gated_norm)(GateKind kind, bool gate_first, const float* x, const float* g, const float* w, float eps, int n,
                       float* y);

    // y[i] = max(x[i], 0)^2
    void (*relu2)(const float* x, int n, float* y);

    // What a token's streams are mixed by, in place of their projection: native/core/streams.h.
    void (*stream_weights)(const StreamShape& shape, const float* base, const float* scale, float* weights);

    // Streams of n values each: x[s] = post[s] * part + sum over others ascending of comb[other][s] * x[other].
    // `weights` are `streams` others, post and comb.
    void (*expand_streams)(int streams, int n, const float* part, const float* weights, float* x);

    // Each runs all tokens of its argument in order and leaves the state after the last.
    void (*conv)(const ConvRun& run);
    void (*delta_rule)(const DeltaRun& run);
    void (*ssm)(const SsmShape& shape, const SsmRun& run);
    void (*compress)(const CompressRun& run);
};

// The table of the same name as a Kernels table; null if this build lacks it.
const Operations* operations_for(std::string_view name);

}  // namespace freetoken
