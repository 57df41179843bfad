// Where the keys and values that a block of attention reads lie, and the scores of rows of queries with them.
//
// Positions lie in runs of sixteen. A run's keys are stored by dimensions, [k_stride][16], so that a score takes one
// lane and no sum crosses lanes; latent keys are stored by positions, and are turned about first.
#pragma once

#include <type_traits>

#include "core/lanes.h"
#include "ops/ops.h"
#include "ops/rows.h"

namespace freetoken {
namespace {

constexpr int kRuns = kAttentionBlock / kLanes;

// Rows that are attended together, and for so many of them: runs that are scored together, and runs of sixteen columns
// of values that are summed together.
#if defined(__AVX512F__)
constexpr int kRowTile = 8;
constexpr int run_tile(int rows) {
    return rows >= 4 ? 1 : 4;
}
constexpr int column_tile(int) {
    return 4;
}
#else
constexpr int kRowTile = 4;
constexpr int run_tile(int rows) {
    return 4 / rows;
}
constexpr int column_tile(int rows) {
    return 4 / rows;
}
#endif
constexpr int kRunTile = 4;

constexpr int least(int a, int b) {
    return a < b ? a : b;
}

// Positions [begin, end), counted within a block.
struct Visible {
    int begin;
    int end;
};

// In one block, of the first kv head: the runs that some row sees, and the keys that are read after them.
struct BlockRuns {
    const uint8_t* keys[kRuns];
    const uint8_t* values[kRuns];
    const uint8_t* next[kRuns];
};

size_t value_bytes(const AttentionShape& shape) {
    return shape.half ? 2 : 4;
}

// Address of an entry in the cache: that of a run where `entry` is a multiple of 16.
const uint8_t* cached(const AttentionShape& shape, const AttentionSpan& span, const uint8_t* base, int stride,
                      int entry) {
    const EntryPlace place = entry_place(entry, shape.every, shape.page_tokens);
    const size_t page = static_cast<size_t>(span.pages[place.page]);
    return base + page * shape.page_bytes + static_cast<size_t>(place.slot * stride) * value_bytes(shape);
}

BlockRuns runs_of(const AttentionShape& shape, const AttentionSpan& span, int block, Visible range) {
    BlockRuns runs;
    const int v_stride = shape.latent ? shape.k_stride : shape.v_stride;
    for (int run = range.begin / kLanes; run * kLanes < range.end; ++run) {
        const int position = block * kAttentionBlock + run * kLanes;
        const int after = position + kAttentionBlock;
        runs.keys[run] = cached(shape, span, span.k, shape.k_stride, position);
        runs.values[run] = cached(shape, span, span.v, v_stride, position);
        runs.next[run] =
            after < span.position + span.queries ? cached(shape, span, span.k, shape.k_stride, after) : runs.keys[run];
    }
    return runs;
}

// Entries [begin, begin + count) of a selection, by their places in it. Latent ones, which may lie anywhere, are
// brought together in `gathered`; others are whole runs of the cache.
BlockRuns chosen_runs(const AttentionShape& shape, const AttentionSpan& span, int begin, int count, uint8_t* gathered) {
    BlockRuns runs;
    const size_t row = static_cast<size_t>(shape.k_stride) * value_bytes(shape);
    for (int run = 0; run * kLanes < count; ++run) {
        const int first = begin + run * kLanes;
        if (shape.latent) {
            uint8_t* const target = gathered + static_cast<size_t>(run * kLanes) * row;
            for (int i = 0; i < kLanes; ++i) {
                const int place = least(first + i, begin + count - 1);  // what is not there is never used
                const int entry = span.chosen[place / shape.chosen_run] * shape.chosen_run + place % shape.chosen_run;
                std::memcpy(target + static_cast<size_t>(i) * row, cached(shape, span, span.k, shape.k_stride, entry),
                            row);
            }
            runs.keys[run] = runs.values[run] = runs.next[run] = target;
            continue;
        }
        const int entry = span.chosen[first / shape.chosen_run] * shape.chosen_run + first % shape.chosen_run;
        runs.keys[run] = runs.next[run] = cached(shape, span, span.k, shape.k_stride, entry);
        runs.values[run] = cached(shape, span, span.v, shape.v_stride, entry);
    }
    return runs;
}

template <bool kHalf>
Lanes load_cached(const uint8_t* p, int i) {
    if constexpr (kHalf)
        return load_half(reinterpret_cast<const uint16_t*>(p) + i);
    else
        return load(reinterpret_cast<const float*>(p) + i);
}

constexpr size_t kLineBytes = 64;

// Into the second cache. Inlined by force: gcc takes a function that does nothing but prefetch for one without effect,
// and drops its calls.
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) {
    __builtin_prefetch(p, 0, 2);
}

// Keys of one run that lie by positions, the address of each given by `row`, as [k_stride][16] of f32.
template <bool kHalf, class Row>
void turn_about(Row row, int stride, float* keys) {
    for (int i = 0; i < stride; i += kLanes) {
        Lanes tile[kLanes];
        for (int p = 0; p < kLanes; ++p) tile[p] = load_cached<kHalf>(row(p), i);
        transpose(tile);
        for (int d = 0; d < kLanes; ++d) store(keys + (i + d) * kLanes, tile[d]);
    }
}

// scores[r][p] of R rows with T runs of keys, while `ahead` is fetched.
template <int R, int T, bool kHalf>
void score_tile(const AttentionShape& shape, const float* q, const uint8_t* const* keys, const uint8_t* const* ahead,
                float* scores) {
    Lanes acc[R][T];
    const float* row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        row[r] = q + static_cast<size_t>(r) * static_cast<size_t>(shape.k_stride);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) acc[r][t] = broadcast(0.0f);
    }
    constexpr size_t run_bytes = kLanes * (kHalf ? 2 : 4);
    const auto dims = static_cast<size_t>(shape.k_dim);
    for (size_t d = 0; d < dims; ++d) {
        Lanes key[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            key[t] = load_cached<kHalf>(keys[t] + d * run_bytes, 0);
            if (d * run_bytes % kLineBytes == 0) prefetch(ahead[t] + d * run_bytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Lanes query = broadcast(row[r][d]);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) acc[r][t] = fma(query, key[t], acc[r][t]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            Lanes score = acc[r][t] * broadcast(shape.scale);
            if (shape.softcap > 0.0f) score = softcap(score, shape.softcap);
            store(scores + r * kAttentionBlock + t * kLanes, score);
        }
    }
}

template <int R, bool kHalf>
void score_rows(const AttentionShape& shape, const float* q, const uint8_t* const* keys, const uint8_t* const* ahead,
                int runs, float* scores) {
    constexpr int T = run_tile(R);
    int run = 0;
    for (; run + T <= runs; run += T) score_tile<R, T, kHalf>(shape, q, keys + run, ahead + run, scores + run * kLanes);
    for (; run < runs; ++run) score_tile<R, 1, kHalf>(shape, q, keys + run, ahead + run, scores + run * kLanes);
}

template <bool kHalf>
void score_runs(const AttentionShape& shape, const float* q, int rows, const uint8_t* const* keys,
                const uint8_t* const* ahead, int runs, float* scores) {
    int row = 0;
    const auto next = [&](auto count) {
        score_rows<count, kHalf>(shape, q + row * shape.k_stride, keys, ahead, runs, scores + row * kAttentionBlock);
        row += count;
    };
    while (row + kRowTile <= rows) next(std::integral_constant<int, kRowTile>());
    if (kRowTile > 4 && row + 4 <= rows) next(std::integral_constant<int, 4>());
    if (row + 2 <= rows) next(std::integral_constant<int, 2>());
    if (row < rows) next(std::integral_constant<int, 1>());
}

// Keys of `count` runs, turned about.
void turn_runs(const AttentionShape& shape, const uint8_t* const* runs, int count, float* turned,
               const uint8_t** keys) {
    const size_t bytes = static_cast<size_t>(shape.k_stride) * value_bytes(shape);
    for (int t = 0; t < count; ++t) {
        float* const target = turned + t * kLanes * shape.k_stride;
        const auto row = [first = runs[t], bytes](int p) { return first + p * bytes; };
        if (shape.half)
            turn_about<true>(row, shape.k_stride, target);
        else
            turn_about<false>(row, shape.k_stride, target);
        keys[t] = reinterpret_cast<const uint8_t*>(target);
    }
}

// Scores of all rows for positions [begin, end) of the block, rounded out to whole runs: what a row may not see is
// computed all the same and never used. A block's last positions are there, if unwritten, because pages are whole.
// Pages are read one after the other, as they lie, and their values fetched meanwhile: a processor's own prefetchers do
// not follow a head from page to page, in pieces of a few KiB. `turned` holds kRunTile runs of k_stride dimensions.
void score_block(const AttentionShape& shape, const BlockRuns& runs, int kv_heads, Visible range, const float* q,
                 int rows, float* turned, float* scores) {
    const int end = (range.end + kLanes - 1) / kLanes;
    const int rows_of_head = rows / kv_heads;
    const int together = shape.latent ? kRunTile : run_tile(least(rows_of_head, kRowTile));
    for (int run = range.begin / kLanes; run < end; run += together) {
        const int count = least(together, end - run);
        for (int head = 0; head < kv_heads; ++head) {
            const uint8_t* keys[kRunTile];
            const uint8_t* values[kRunTile];
            for (int t = 0; t < count; ++t) {
                keys[t] = runs.keys[run + t] + static_cast<size_t>(head) * shape.k_head_bytes;
                values[t] = runs.values[run + t] + static_cast<size_t>(head) * shape.v_head_bytes;
            }
            const float* const queries = q + head * rows_of_head * shape.k_stride;
            float* const found = scores + head * rows_of_head * kAttentionBlock + run * kLanes;
            if (shape.latent) turn_runs(shape, runs.keys + run, count, turned, keys);
            if (shape.half && !shape.latent)
                score_runs<true>(shape, queries, rows_of_head, keys, values, count, found);
            else
                score_runs<false>(shape, queries, rows_of_head, keys, values, count, found);
        }
    }
}

}  // namespace
}  // namespace freetoken
