// Attention over cached positions, one block of 256 positions at a time. Rows that share a kv head share the reading
// of its keys and values; what a row computes does not depend on the rows beside it.
#pragma once

#include "ops/attention_runs.h"

namespace freetoken {
namespace {

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
    size_t queries;   // rows, k_stride apart
    size_t turned;    // latent keys by dimensions
    size_t gathered;  // latent keys of a selection
    size_t total;

    explicit ScratchLayout(const AttentionShape& shape) {
        const size_t k_stride = static_cast<size_t>(shape.k_stride);
        queries = scores + static_cast<size_t>(kAttentionRows) * kAttentionBlock;
        turned = queries + kAttentionRows * k_stride;
        gathered = turned + (shape.latent ? kRunTile * kLanes * k_stride : 0);
        total = gathered + (shape.latent && shape.chosen_run > 0 ? kAttentionBlock * k_stride : 0);
    }
};

size_t attention_scratch(const AttentionShape& shape) {
    return ScratchLayout(shape).total;
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

// The keys that are read after a block, page by page as they lie: they are fetched while its values are summed.
class KeysAhead {
public:
    KeysAhead(const AttentionShape& shape, const BlockRuns& runs, int kv_heads, Visible range)
        : next_(runs.next + range.begin / kLanes),
          end_(runs.next + (range.end + kLanes - 1) / kLanes),
          kv_heads_(kv_heads),
          head_bytes_(shape.k_head_bytes),
          run_bytes_(static_cast<size_t>(shape.k_stride) * kLanes * value_bytes(shape)) {}

    // Where the next `bytes` begin; a place that was fetched before when all have been.
    const uint8_t* take(size_t bytes) {
        const uint8_t* const place = *next_ + static_cast<size_t>(head_) * head_bytes_ + at_;
        at_ += bytes;
        if (at_ < run_bytes_) return place;
        at_ = 0;
        if (++head_ < kv_heads_) return place;
        head_ = 0;
        if (next_ + 1 < end_) ++next_;
        return place;
    }

private:
    const uint8_t* const* next_;
    const uint8_t* const* end_;
    int kv_heads_;
    size_t head_bytes_;
    size_t run_bytes_;
    int head_ = 0;
    size_t at_ = 0;
};

// Values of some positions in a block: a run each, and how they lie in one.
struct ValueRuns {
    const uint8_t* const* runs;
    size_t head_at;  // of the kv head that is read, from the first one's on
    size_t position_bytes;
};

// o[r][i] = fma(weight[r][p], v[p][i], o[r][i]) for ascending p of `range`, R rows and C runs of 16 values from byte
// `column` of each position on.
template <int R, int C, bool kHalf>
void accumulate_tile(const ValueRuns& values, KeysAhead& ahead, size_t column, Visible range, const float* weights,
                     float* o, int o_stride) {
    constexpr size_t tile_bytes = C * kLanes * (kHalf ? 2 : 4);
    Lanes acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = load(o + r * o_stride + c * kLanes);
    for (int p = range.begin; p < range.end;) {
        const int run = p / kLanes;
        const int stop = least(range.end, (run + 1) * kLanes);
        const uint8_t* at =
            values.runs[run] + values.head_at + static_cast<size_t>(p % kLanes) * values.position_bytes + column;
        const uint8_t* fetched = ahead.take(kLanes * tile_bytes);
        for (; p < stop; ++p, at += values.position_bytes, fetched += tile_bytes) {
            for (size_t line = 0; line < tile_bytes; line += kLineBytes) prefetch(fetched + line);
            Lanes value[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) value[c] = load_cached<kHalf>(at, c * kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Lanes weight = broadcast(weights[r * kAttentionBlock + p]);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, value[c], acc[r][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) store(o + r * o_stride + c * kLanes, acc[r][c]);
}

template <int R, bool kHalf>
void accumulate_rows(const ValueRuns& values, KeysAhead& ahead, Visible range, const float* weights, float* o,
                     int o_stride) {
    constexpr int C = column_tile(R);
    constexpr size_t size = kHalf ? 2 : 4;
    int i = 0;
    for (; i + C * kLanes <= o_stride; i += C * kLanes)
        accumulate_tile<R, C, kHalf>(values, ahead, static_cast<size_t>(i) * size, range, weights, o + i, o_stride);
    for (; i < o_stride; i += kLanes)
        accumulate_tile<R, 1, kHalf>(values, ahead, static_cast<size_t>(i) * size, range, weights, o + i, o_stride);
}

// Rows of one kv head, in blocks of 256 scores and of v_stride sums.
struct HeadRows {
    const AttentionShape& shape;
    const ValueRuns values;
    const Visible* ranges;
    const float* weights;
    float* o;
};

// Values of positions `range` into rows [row, row + R).
template <int R>
void accumulate(const HeadRows& rows, KeysAhead& ahead, int row, Visible range) {
    if (range.end <= range.begin) return;
    const float* weights = rows.weights + row * kAttentionBlock;
    const int stride = rows.shape.v_stride;
    float* sums = rows.o + static_cast<size_t>(row) * static_cast<size_t>(stride);
    if (rows.shape.half)
        accumulate_rows<R, true>(rows.values, ahead, range, weights, sums, stride);
    else
        accumulate_rows<R, false>(rows.values, ahead, range, weights, sums, stride);
}

// Rows of one tile see nearly the same positions: what all see is read once, the ragged ends row by row. A position
// that a row does not see must not touch its sums, not even by a product with zero: the value there may be a NaN.
template <int R>
void accumulate_visible(const HeadRows& rows, KeysAhead& ahead, int row) {
    Visible common = rows.ranges[row];
    for (int r = row; r < row + R; ++r) {
        if (rows.ranges[r].begin > common.begin) common.begin = rows.ranges[r].begin;
        if (rows.ranges[r].end < common.end) common.end = rows.ranges[r].end;
    }
    if (common.end <= common.begin) {
        for (int r = row; r < row + R; ++r) accumulate<1>(rows, ahead, r, rows.ranges[r]);
        return;
    }
    for (int r = row; r < row + R; ++r) accumulate<1>(rows, ahead, r, {rows.ranges[r].begin, common.begin});
    accumulate<R>(rows, ahead, row, common);
    for (int r = row; r < row + R; ++r) accumulate<1>(rows, ahead, r, {common.end, rows.ranges[r].end});
}

void accumulate_head(const HeadRows& rows, KeysAhead& ahead, int count) {
    int row = 0;
    for (; row + kRowTile <= count; row += kRowTile) accumulate_visible<kRowTile>(rows, ahead, row);
    if (kRowTile > 4 && row + 4 <= count) {
        accumulate_visible<4>(rows, ahead, row);
        row += 4;
    }
    if (row + 2 <= count) {
        accumulate_visible<2>(rows, ahead, row);
        row += 2;
    }
    if (row < count) accumulate<1>(rows, ahead, row, rows.ranges[row]);
}

void accumulate_block(const AttentionShape& shape, const BlockRuns& runs, int kv_heads, Visible all, int rows,
                      const Visible* ranges, const float* scores, float* o) {
    KeysAhead ahead(shape, runs, kv_heads, all);
    const int count = rows / kv_heads;
    const size_t position_bytes =
        static_cast<size_t>(shape.latent ? shape.k_stride : shape.v_stride) * value_bytes(shape);
    for (int head = 0; head < kv_heads; ++head) {
        const int row = head * count;
        const ValueRuns values = {runs.values, static_cast<size_t>(head) * shape.v_head_bytes, position_bytes};
        accumulate_head({shape, values, ranges + row, scores + row * kAttentionBlock, o + row * shape.v_stride}, ahead,
                        count);
    }
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
    const int left = least(span.chosen_entries - block * kAttentionBlock, kAttentionBlock);
    for (int r = 0; r < span.rows(); ++r) {
        ranges[r] = span.chosen == nullptr ? visible(shape, span.position + r / span.heads, block) : Visible{0, left};
        if (ranges[r].end <= ranges[r].begin) continue;
        if (ranges[r].begin < all.begin) all.begin = ranges[r].begin;
        if (ranges[r].end > all.end) all.end = ranges[r].end;
    }
    const ScratchLayout layout(shape);
    float* scores = scratch + layout.scores;
    auto* const gathered = reinterpret_cast<uint8_t*>(scratch + layout.gathered);
    const BlockRuns runs = span.chosen == nullptr ? runs_of(shape, span, block, all)
                                                  : chosen_runs(shape, span, block * kAttentionBlock, left, gathered);
    gather_queries(shape, span, scratch + layout.queries);
    score_block(shape, runs, span.kv_heads, all, scratch + layout.queries, span.rows(), scratch + layout.turned,
                scores);
    for (int r = 0; r < span.rows(); ++r) {
        float* o = part.o + static_cast<size_t>(r) * static_cast<size_t>(shape.v_stride);
        for (int i = 0; i < shape.v_stride; i += kLanes) store(o + i, broadcast(0.0f));
        if (ranges[r].end > ranges[r].begin)
            exponentiate(scores + r * kAttentionBlock, ranges[r], part.m[r], part.l[r]);
        else
            part.l[r] = -1.0f;
    }
    accumulate_block(shape, runs, span.kv_heads, all, span.rows(), ranges, scores, part.o);
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
