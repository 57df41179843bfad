// Attention over cached positions, one block of 256 positions at a time. Rows that share a kv head share the reading
// of its keys and values; what a row computes does not depend on the rows beside it.
#pragma once

#include "core/lanes.h"
#include "ops/ops.h"
#include "ops/rows.h"

namespace freetoken {
namespace {

// Rows and runs of 16 values whose sums stay in registers.
#if defined(__AVX512F__)
constexpr int kRowTile = 4;
constexpr int kLaneTile = 4;
#else
constexpr int kRowTile = 2;
constexpr int kLaneTile = 2;
#endif

// Positions [begin, end), counted within a block.
struct Visible {
    int begin;
    int end;
};

Visible visible(const AttentionShape& shape, int position, int block) {
    const int first = block * kAttentionBlock;
    const int oldest = shape.sight.oldest(position);
    const int begin = oldest > first ? oldest - first : 0;
    const int end = position + 1 - first;
    return {begin, end < kAttentionBlock ? end : kAttentionBlock};
}

int padded(int n) {
    return (n + kLanes - 1) / kLanes * kLanes;
}

// Where the parts of the scratch memory lie, in values.
struct ScratchLayout {
    size_t scores = 0;
    size_t queries;  // rows padded with zeros to k_stride
    size_t keys;     // 16 positions as f32
    size_t total;

    explicit ScratchLayout(const AttentionShape& shape) {
        const size_t k_stride = static_cast<size_t>(shape.k_stride);
        queries = scores + static_cast<size_t>(kAttentionRows) * kAttentionBlock;
        keys = queries + kAttentionRows * k_stride;
        total = keys + kLanes * k_stride;
    }
};

size_t attention_scratch(const AttentionShape& shape) {
    return ScratchLayout(shape).total;
}

// Address of a position's values in the cache; 16 positions from a multiple of 16 on lie side by side.
const uint8_t* cached(const AttentionShape& shape, const AttentionSpan& span, const uint8_t* base, int stride,
                      int position) {
    const size_t page = static_cast<size_t>(span.pages[position / shape.page_tokens]);
    const size_t slot = static_cast<size_t>(position % shape.page_tokens);
    return base + page * shape.page_bytes + slot * static_cast<size_t>(stride) * (shape.half ? 2 : 4);
}

template <bool kHalf>
Lanes load_cached(const uint8_t* p, int i) {
    if constexpr (kHalf)
        return load_half(reinterpret_cast<const uint16_t*>(p) + i);
    else
        return load(reinterpret_cast<const float*>(p) + i);
}

// q . keys[p] in lane p, for sixteen positions.
#if defined(__AVX512F__)
Lanes dots(const float* q, const float* keys, int stride) {
    Lanes acc[kLanes];
    for (int p = 0; p < kLanes; ++p) acc[p] = broadcast(0.0f);
    for (int i = 0; i < stride; i += kLanes) {
        const Lanes query = load(q + i);
#pragma GCC unroll 16
        for (int p = 0; p < kLanes; ++p) acc[p] = fma(query, load(keys + p * stride + i), acc[p]);
    }
    return sums(acc);
}
#else
// Four at a time: more sums than that do not stay in registers.
Lanes dots(const float* q, const float* keys, int stride) {
    float scores[kLanes];
    for (int first = 0; first < kLanes; first += 4) {
        Lanes acc[4];
        for (int p = 0; p < 4; ++p) acc[p] = broadcast(0.0f);
        for (int i = 0; i < stride; i += kLanes) {
            const Lanes query = load(q + i);
            for (int p = 0; p < 4; ++p) acc[p] = fma(query, load(keys + (first + p) * stride + i), acc[p]);
        }
        for (int p = 0; p < 4; ++p) scores[first + p] = sum(acc[p]);
    }
    return load(scores);
}
#endif

Lanes capped(Lanes score, float softcap) {
    const Lanes e = exp(score / broadcast(softcap) * broadcast(2.0f));
    return broadcast(softcap) * ((e - broadcast(1.0f)) / (e + broadcast(1.0f)));
}

// A head's sixteen positions are a short run of a page, and no prefetcher of a processor guesses where the next lies.
// Inlined by force: gcc takes a function that does nothing but prefetch for one without effect, and drops its calls.
[[gnu::always_inline]] inline void prefetch(const uint8_t* data, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i, 0, 2);
}

// Fetches the keys that are scored four runs after `position`, and the values that are added when its block is scored.
[[gnu::always_inline]] inline void prefetch_around(const AttentionShape& shape, const AttentionSpan& span, int position) {
    const size_t run_bytes = kLanes * (shape.half ? 2 : 4);
    const int ahead = position + 4 * kLanes;
    if (ahead < span.position + span.queries)
        prefetch(cached(shape, span, span.k, shape.k_stride, ahead), run_bytes * static_cast<size_t>(shape.k_stride));
    if (span.v != span.k)
        prefetch(cached(shape, span, span.v, shape.v_stride, position), run_bytes * static_cast<size_t>(shape.v_stride));
}

// Scores of all rows for positions [begin, end) of the block, rounded out to multiples of 16: what a row may not see is
// computed all the same and never used. A block's last positions are there, if unwritten, because pages are whole.
void score_block(const AttentionShape& shape, const AttentionSpan& span, int block, Visible range, float* scratch) {
    const ScratchLayout layout(shape);
    const float* queries = scratch + layout.queries;
    float* converted = scratch + layout.keys;
    for (int p = range.begin / kLanes * kLanes; p < range.end; p += kLanes) {
        prefetch_around(shape, span, block * kAttentionBlock + p);
        const uint8_t* stored = cached(shape, span, span.k, shape.k_stride, block * kAttentionBlock + p);
        const float* keys = reinterpret_cast<const float*>(stored);
        if (shape.half) {
            for (int i = 0; i < kLanes * shape.k_stride; i += kLanes)
                store(converted + i, load_cached<true>(stored, i));
            keys = converted;
        }
        for (int r = 0; r < span.rows(); ++r) {
            float* scores = scratch + layout.scores + r * kAttentionBlock + p;
            const float* query = queries + static_cast<size_t>(r) * static_cast<size_t>(shape.k_stride);
            Lanes score = dots(query, keys, shape.k_stride) * broadcast(shape.scale);
            if (shape.softcap > 0.0f) score = capped(score, shape.softcap);
            store(scores, score);
        }
    }
}

// Scores to exp(score - m) for the positions of `range`, zero for their neighbours up to multiples of 16. NaN never
// becomes the maximum; it makes l a NaN.
void exponentiate(float* scores, Visible range, float& m, float& l) {
    const int first = range.begin / kLanes * kLanes;
    const int last = padded(range.end);
    for (int p = first; p < range.begin; ++p) scores[p] = -__builtin_inff();
    for (int p = range.end; p < last; ++p) scores[p] = -__builtin_inff();
    Lanes maxima = broadcast(-__builtin_inff());
    for (int p = first; p < last; p += kLanes) maxima = max(load(scores + p), maxima);
    alignas(64) float lane[kLanes];
    store(lane, maxima);
    m = lane[0];
    for (int i = 1; i < kLanes; ++i) m = lane[i] > m ? lane[i] : m;

    for (int p = first; p < last; p += kLanes) store(scores + p, exp(load(scores + p) - broadcast(m)));
    for (int p = first; p < range.begin; ++p) scores[p] = 0.0f;
    for (int p = range.end; p < last; ++p) scores[p] = 0.0f;
    Lanes total = broadcast(0.0f);
    for (int p = first; p < last; p += kLanes) total = total + load(scores + p);
    l = sum(total);
}

// o[r][i] = fma(weight[r][p], v[p][i], o[r][i]) for ascending p in [0, count), R rows and C runs of 16 values.
template <int R, int C, bool kHalf>
void accumulate_tile(const float* weights, const uint8_t* v, size_t v_bytes, int count, float* o, int o_stride) {
    Lanes acc[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = load(o + r * o_stride + c * kLanes);
    for (int p = 0; p < count; ++p, v += v_bytes) {
        Lanes value[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) value[c] = load_cached<kHalf>(v, c * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Lanes weight = broadcast(weights[r * kAttentionBlock + p]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, value[c], acc[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) store(o + r * o_stride + c * kLanes, acc[r][c]);
}

template <int R, bool kHalf>
void accumulate_rows(const float* weights, const uint8_t* v, size_t v_bytes, int count, float* o, int o_stride) {
    const int runs = o_stride / kLanes;
    int run = 0;
    const size_t size = kHalf ? 2 : 4;
    for (; run + kLaneTile <= runs; run += kLaneTile)
        accumulate_tile<R, kLaneTile, kHalf>(weights, v + run * kLanes * size, v_bytes, count, o + run * kLanes,
                                             o_stride);
    for (; run < runs; ++run)
        accumulate_tile<R, 1, kHalf>(weights, v + run * kLanes * size, v_bytes, count, o + run * kLanes, o_stride);
}

// Values of positions [begin, end) of the block into rows [row, row + R).
template <int R>
void accumulate(const AttentionShape& shape, const AttentionSpan& span, int block, int row, Visible range,
                const float* scores, float* o) {
    const bool latent = span.v == span.k;
    const int stride = latent ? shape.k_stride : shape.v_stride;
    for (int p = range.begin; p < range.end;) {
        const int position = block * kAttentionBlock + p;
        const int in_page = shape.page_tokens - position % shape.page_tokens;
        const int count = in_page < range.end - p ? in_page : range.end - p;
        const uint8_t* v = cached(shape, span, span.v, stride, position);
        const float* weights = scores + row * kAttentionBlock + p;
        float* sums = o + static_cast<size_t>(row) * static_cast<size_t>(shape.v_stride);
        const size_t v_bytes = static_cast<size_t>(stride) * (shape.half ? 2 : 4);
        if (shape.half)
            accumulate_rows<R, true>(weights, v, v_bytes, count, sums, shape.v_stride);
        else
            accumulate_rows<R, false>(weights, v, v_bytes, count, sums, shape.v_stride);
        p += count;
    }
}

// Rows of one tile see nearly the same positions: what all see is read once, the ragged ends row by row. A position
// that a row does not see must not touch its sums, not even by a product with zero: the value there may be a NaN.
template <int R>
void accumulate_tile_rows(const AttentionShape& shape, const AttentionSpan& span, int block, int row,
                          const Visible* ranges, const float* scores, float* o) {
    Visible common = ranges[row];
    for (int r = row; r < row + R; ++r) {
        if (ranges[r].begin > common.begin) common.begin = ranges[r].begin;
        if (ranges[r].end < common.end) common.end = ranges[r].end;
    }
    if (common.end <= common.begin) {
        for (int r = row; r < row + R; ++r) accumulate<1>(shape, span, block, r, ranges[r], scores, o);
        return;
    }
    for (int r = row; r < row + R; ++r)
        accumulate<1>(shape, span, block, r, {ranges[r].begin, common.begin}, scores, o);
    accumulate<R>(shape, span, block, row, common, scores, o);
    for (int r = row; r < row + R; ++r) accumulate<1>(shape, span, block, r, {common.end, ranges[r].end}, scores, o);
}

void gather_queries(const AttentionShape& shape, const AttentionSpan& span, float* queries) {
    for (int r = 0; r < span.rows(); ++r) {
        const float* q = span.q + static_cast<size_t>(r / span.heads) * span.q_stride +
                         static_cast<size_t>(r % span.heads) * static_cast<size_t>(shape.k_dim);
        store_cached(q, shape.k_dim, shape.k_stride, false, reinterpret_cast<uint8_t*>(queries + r * shape.k_stride));
    }
}

void attend_block(const AttentionShape& shape, const AttentionSpan& span, int block, float* scratch,
                  const AttentionPart& part) {
    Visible ranges[kAttentionRows];
    Visible all = {kAttentionBlock, 0};
    for (int r = 0; r < span.rows(); ++r) {
        ranges[r] = visible(shape, span.position + r / span.heads, block);
        if (ranges[r].end <= ranges[r].begin) continue;
        if (ranges[r].begin < all.begin) all.begin = ranges[r].begin;
        if (ranges[r].end > all.end) all.end = ranges[r].end;
    }
    const ScratchLayout layout(shape);
    float* scores = scratch + layout.scores;
    gather_queries(shape, span, scratch + layout.queries);
    score_block(shape, span, block, all, scratch);
    for (int r = 0; r < span.rows(); ++r) {
        float* o = part.o + static_cast<size_t>(r) * static_cast<size_t>(shape.v_stride);
        for (int i = 0; i < shape.v_stride; i += kLanes) store(o + i, broadcast(0.0f));
        if (ranges[r].end > ranges[r].begin)
            exponentiate(scores + r * kAttentionBlock, ranges[r], part.m[r], part.l[r]);
        else
            part.l[r] = -1.0f;
    }
    int row = 0;
    for (; row + kRowTile <= span.rows(); row += kRowTile)
        accumulate_tile_rows<kRowTile>(shape, span, block, row, ranges, scores, part.o);
    if (kRowTile > 2 && row + 2 <= span.rows()) {
        accumulate_tile_rows<2>(shape, span, block, row, ranges, scores, part.o);
        row += 2;
    }
    for (; row < span.rows(); ++row) accumulate<1>(shape, span, block, row, ranges[row], scores, part.o);
}

void merge_attention(int rows, int v_stride, const AttentionPart& part, const AttentionPart& sum) {
    for (int r = 0; r < rows; ++r) {
        if (part.l[r] < 0.0f) continue;
        const float* o = part.o + static_cast<size_t>(r) * static_cast<size_t>(v_stride);
        float* total = sum.o + static_cast<size_t>(r) * static_cast<size_t>(v_stride);
        if (sum.l[r] < 0.0f) {
            sum.m[r] = part.m[r];
            sum.l[r] = part.l[r];
            std::memcpy(total, o, static_cast<size_t>(v_stride) * sizeof(float));
            continue;
        }
        const float m = part.m[r] > sum.m[r] ? part.m[r] : sum.m[r];
        const float old_factor = exp(sum.m[r] - m);
        const float new_factor = exp(part.m[r] - m);
        sum.m[r] = m;
        sum.l[r] = sum.l[r] * old_factor + part.l[r] * new_factor;
        for (int i = 0; i < v_stride; i += kLanes)
            store(total + i, load(total + i) * broadcast(old_factor) + load(o + i) * broadcast(new_factor));
    }
}

void finish_attention(const float* sink, float m, float l, const float* o, int v_dim, float* out) {
    float factor = 1.0f;
    if (sink != nullptr) {
        const float with_sink = *sink > m ? *sink : m;
        factor = exp(m - with_sink);
        l = l * factor + exp(*sink - with_sink);
    }
    for_lanes(v_dim, [&](int i, int lanes) {
        const Lanes scaled = load_up_to(o + i, lanes) * broadcast(factor);
        store_up_to(out + i, canonical(scaled / broadcast(l)), lanes);
    });
}

}  // namespace
}  // namespace freetoken
