// Scores of cached keys for an indexer's queries. What one query makes of one key does not depend on those beside them.
#pragma once

#include "ops/attention_runs.h"

namespace freetoken {
namespace {

// Where the parts of the scratch memory lie, in values.
struct IndexScratch {
    size_t queries = 0;  // rows, k_stride apart
    size_t turned;       // keys by dimensions
    size_t scores;       // of every head by itself, where they are added up
    size_t total;

    IndexScratch(const IndexShape& shape, int rows) {
        const auto stride = static_cast<size_t>(shape.k_stride);
        turned = queries + static_cast<size_t>(rows) * stride;
        scores = turned + kRunTile * kLanes * stride;
        total = scores + (shape.weighted ? static_cast<size_t>(rows) * kAttentionBlock : 0);
    }
};

size_t index_scratch(const IndexShape& shape, int queries) {
    return IndexScratch(shape, queries * shape.heads).total;
}

// total[s] = fma(w[h], max(score[h][s], 0), total[s]) for h ascending, from zero.
void add_heads(const IndexShape& shape, const float* weights, const float* scores, int entries, float* total) {
    for (int s = 0; s < entries; s += kLanes) {
        Lanes sum = broadcast(0.0f);
        for (int h = 0; h < shape.heads; ++h)
            sum = fma(broadcast(weights[h]), max(load(scores + h * kAttentionBlock + s), broadcast(0.0f)), sum);
        store(total + s, sum);
    }
}

void index_scores(const IndexShape& shape, const IndexSpan& span, float* scratch, float* scores) {
    const int rows = span.queries * shape.heads;
    const IndexScratch layout(shape, rows);
    float* const queries = scratch + layout.queries;
    for (int r = 0; r < rows; ++r) {
        const float* q = span.q + static_cast<size_t>(r / shape.heads) * span.q_stride + r % shape.heads * shape.k_dim;
        store_cached(q, shape.k_dim, shape.k_stride, false, reinterpret_cast<uint8_t*>(queries + r * shape.k_stride));
    }
    AttentionShape plain;
    plain.k_dim = shape.k_dim;
    plain.k_stride = shape.k_stride;
    float* const apart = shape.weighted ? scratch + layout.scores : scores;
    const int runs = (span.entries + kLanes - 1) / kLanes;
    for (int run = 0; run < runs; run += kRunTile) {
        const int count = least(kRunTile, runs - run);
        const uint8_t* keys[kRunTile];
        for (int t = 0; t < count; ++t) {
            float* const target = scratch + layout.turned + t * kLanes * shape.k_stride;
            const int first = (run + t) * kLanes;
            const auto row = [&](int p) { return span.keys[least(first + p, span.entries - 1)]; };
            if (shape.half)
                turn_about<true>(row, shape.k_stride, target);
            else
                turn_about<false>(row, shape.k_stride, target);
            keys[t] = reinterpret_cast<const uint8_t*>(target);
        }
        score_runs<false>(plain, queries, rows, keys, keys, count, apart + run * kLanes);
    }
    for (int query = 0; shape.weighted && query < span.queries; ++query)
        add_heads(shape, span.weights + static_cast<size_t>(query) * span.weight_stride,
                  apart + query * shape.heads * kAttentionBlock, span.entries, scores + query * kAttentionBlock);
}

}  // namespace
}  // namespace freetoken
