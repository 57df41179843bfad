// Two tiles times up to 32 rows of activations by one block of 128 threads: what linear_many.cu and expert_many.cu
// share. A caller has `row_at(t)`, the bytes from `x` to the activations of token t, less than 4 GiB, and
// `write(row, t, value)`.
//
// Integer codecs, on the tensor cores: a warp takes a segment, so the contract's four sums are four warps and meet
// once, at the end. For a block of 32 columns, a tile and 8 tokens it makes two products of 16 x 32 x 8, of the high
// and of the low bytes of q. Their sums start from 1.5 * 2^23 as bits, so that they are floats as they come out, less
// that number: no conversion, of which a multiprocessor does few. So high and low (less than 2^22 each) are exact, and
// fma(high, 256, low) rounds the exact sum once, as a conversion of the integer would. Codecs with two scales a block
// make four products, the other half of the activations being zero.
// Instructions (of PTX, sm_90, without moves, which become operands) for two tiles, 32 tokens and a block, 32768
// products of weights and activations: q8_0 302, q4_0 348, mxfp4 376, q4_k 431, nvfp4 736, of them 16 (nvfp4 32) of the
// tensor cores; hence 430 to 180 products a cycle and multiprocessor. From the second-level cache a block of threads
// reads 96 bytes of each token and 18 to 34 of each row for these, some 4 KiB. No spills: 71 to 140 registers.
//
// Floats: a thread owns two rows, four tokens and all four sums, so nothing is put together at the end; a warp is a
// tile and 16 tokens.
#pragma once

#include "cuda/row_pair.h"
#include "cuda/token_group.h"

namespace freetoken {

inline constexpr int kSubgroupTokens = 8;  // columns of a product of the tensor cores
inline constexpr int kSubgroups = kGroupTokens / kSubgroupTokens;

// --- integer codecs

// What a lane holds of a tile's block: rows g and g + 8, of each eight weights.
template <Codec C>
struct TileLane {
    WordsOfEight<C> words[2];
    ScaleWords scales[2];
};

template <Codec C>
static inline TileLane<C> load_lane(const uint8_t* tile, int block, int g, int t) {
    const BlockOffsets at = block_offsets<C>(block);
    TileLane<C> lane;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const int row = g + 8 * i;
        const uint8_t* codes = tile + at.codes + 4 * row;
        for (int w = 0; w < words_of_eight(C); ++w)
            lane.words[i][w] = load_stream_word(codes + kScaleLine * word_of_eight<C>(t, w));
        lane.scales[i] = load_scales<C>(tile, at, row);
    }
    return lane;
}

// A tile's block, decoded: what the tensor cores take, and the scales of rows g and g + 8.
template <Codec C>
struct TileWeights {
    uint32_t a[4];
    Scales<C> scales[2];
};

template <Codec C>
static inline TileWeights<C> decode_lane(const TileLane<C>& lane, int t) {
    TileWeights<C> weights;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const Eight eight = decode_eight<C>(lane.words[i], t);
        weights.a[i] = eight.low;
        weights.a[2 + i] = eight.high;
        weights.scales[i] = decode_scales<C>(lane.scales[i]);
    }
    return weights;
}

// What a lane holds of eight tokens' block: eight bytes of token g, and what goes with the sums of tokens 2t and 2t
// + 1.
struct TokenLane {
    uint32_t hi[2];
    uint32_t lo[2];
    BlockSums sums[2];
};

// Bytes from x to the activations of eight tokens, for a lane.
struct TokenOffsets {
    uint32_t own;      // of token g
    uint32_t sums[2];  // of tokens 2t and 2t + 1
};

template <Codec C>
static inline TokenLane load_tokens(const uint8_t* x, const TokenOffsets& at, int block, int t) {
    const auto block_of = [&](uint32_t offset) { return reinterpret_cast<const QuantBlock*>(x + offset) + block; };
    const QuantBlock* own = block_of(at.own);
    const uint2 hi = load_aligned<uint2>(own->hi + 8 * t);
    const uint2 lo = load_aligned<uint2>(own->lo + 8 * t);
    return {{hi.x, hi.y}, {lo.x, lo.y}, {load_sums<C>(block_of(at.sums[0])), load_sums<C>(block_of(at.sums[1]))}};
}

static inline float exact_sum(int32_t bits) {
    return float_of(static_cast<uint32_t>(bits)) - kRoundMagic;
}

// Sums of the high and of the low bytes of q, from `start`; of a codec with two scales a block those of one half.
template <Codec C>
static inline void multiply_bytes(const TileWeights<C>& weights, const TokenLane& x, int t, int half, int start,
                                  int32_t (&high)[4], int32_t (&low)[4]) {
    const bool mine = kHalves<C> == 1 || t / 2 == half;
    const uint32_t hi[2] = {mine ? x.hi[0] : 0, mine ? x.hi[1] : 0};
    const uint32_t lo[2] = {mine ? x.lo[0] : 0, mine ? x.lo[1] : 0};
    UNROLL
    for (int i = 0; i < 4; ++i) high[i] = low[i] = start;
    mma_s8_twice(high, low, weights.a, hi, lo);
}

// acc += a tile's block times eight tokens', acc[2 i + c] being row g + 8 i and token 2t + c.
template <Codec C>
static inline void add_products(const TileWeights<C>& weights, const TokenLane& x, int t, float (&acc)[4]) {
    int32_t high[4], low[4];
    if constexpr (has_integer_scales(C)) {
        int32_t products[4][2];
        UNROLL
        for (int half = 0; half < 2; ++half) {
            multiply_bytes(weights, x, t, half, 0, high, low);
            UNROLL
            for (int i = 0; i < 4; ++i)
                products[i][half] = 256 * high[i] + low[i] + zero_sum<C>(x.sums[i % 2], half);
        }
        UNROLL
        for (int i = 0; i < 4; ++i) acc[i] = add_halves<C>(weights.scales[i / 2], products[i], x.sums[i % 2], acc[i]);
    } else {
        UNROLL
        for (int half = 0; half < kHalves<C>; ++half) {
            multiply_bytes(weights, x, t, half, static_cast<int>(kRoundMagicBits), high, low);
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const BlockScales& scales = weights.scales[i / 2];
                const BlockSums& sums = x.sums[i % 2];
                float rest = exact_sum(low[i]);
                if constexpr (kHasZeroSum<C>) rest = rest + static_cast<float>(zero_sum<C>(sums, half));
                if constexpr (has_zero_point(C)) rest = fma(-static_cast<float>(scales.zero), sums.sum, rest);
                const float sum = fma(exact_sum(high[i]), 256.0f, rest);
                acc[i] = fma((half == 0 ? scales.first : scales.second) * sums.scale, sum, acc[i]);
            }
        }
        if constexpr (has_minimum(C)) {
            UNROLL
            for (int i = 0; i < 4; ++i) acc[i] = add_minimum(weights.scales[i / 2], x.sums[i % 2], acc[i]);
        }
    }
}

template <Codec C, class RowAt, class Write>
static inline void multiply_integer_tiles(const uint8_t* first_tile, int tiles, int cols, const uint8_t* x, int tokens,
                                          RowAt row_at, Write write) {
    SHARED(float, segments, 4 * kTilesOfBlock * kGroupTokens * kTileRows);  // [segment][tile][token][row]
    constexpr int tile_values = kGroupTokens * kTileRows;
    const int segment = static_cast<int>(threadIdx.x) / kWarp;
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    const int64_t tile_stride = tile_bytes(C, cols);

    TokenOffsets offsets[kSubgroups];
    UNROLL
    for (int n = 0; n < kSubgroups; ++n) {
        const auto offset = [&](int token) { return row_at(min(kSubgroupTokens * n + token, tokens - 1)); };
        offsets[n] = {offset(g), {offset(2 * t), offset(2 * t + 1)}};
    }
    float acc[kTilesOfBlock][kSubgroups][4] = {};
    const int end = segment_begin(segment + 1, cols / kBlock);
    for (int block = segment_begin(segment, cols / kBlock); block < end; ++block) {
        TileWeights<C> weights[kTilesOfBlock];
        UNROLL
        for (int m = 0; m < kTilesOfBlock; ++m) {
            const uint8_t* tile = first_tile + (m < tiles ? m : 0) * tile_stride;
            weights[m] = decode_lane<C>(load_lane<C>(tile, block, g, t), t);
        }
        UNROLL
        for (int n = 0; n < kSubgroups; ++n) {
            if (kSubgroupTokens * n >= tokens) continue;
            const TokenLane token = load_tokens<C>(x, offsets[n], block, t);
            UNROLL
            for (int m = 0; m < kTilesOfBlock; ++m)
                if (m < tiles) add_products<C>(weights[m], token, t, acc[m][n]);
        }
    }
    UNROLL
    for (int m = 0; m < kTilesOfBlock; ++m) {
        UNROLL
        for (int n = 0; n < kSubgroups; ++n) {
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const int token = kSubgroupTokens * n + 2 * t + i % 2;
                const int place = ((segment * kTilesOfBlock + m) * kGroupTokens + token) * kTileRows;
                segments[place + g + 8 * (i / 2)] = acc[m][n][i];
            }
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < tiles * tokens * kTileRows; i += kThreadsOfTileBlock) {
        const int row = i % kTileRows;
        const int token = i / kTileRows % tokens;
        const int m = i / kTileRows / tokens;
        const float* sum = segments + (m * kGroupTokens + token) * kTileRows + row;
        constexpr int stride = kTilesOfBlock * tile_values;
        const float total = (sum[0] + sum[stride]) + (sum[2 * stride] + sum[3 * stride]);
        write(m * kTileRows + row, token, canonical(total * row_factor<C>(first_tile + m * tile_stride, row)));
    }
}

// --- plain codecs and scaled floats

inline constexpr int kThreadTokens = 4;

// Four columns of two rows, as they lie.
template <Codec C>
struct FloatRun {
    uint2 columns[kFloatColumns];
    ScaledRun scaled;
};

template <Codec C>
static inline void load_float_run(const uint8_t* codes, int run, int pair, FloatRun<C>& out) {
    if constexpr (codec_info(C).kind == CodecKind::scaled) {
        out.scaled = load_run(codes, run, pair);
    } else {
        UNROLL
        for (int s = 0; s < kFloatColumns; ++s) out.columns[s] = load_plain<C>(codes, kFloatColumns * run + s, pair);
    }
}

template <Codec C>
static inline RowPair float_column(const FloatRun<C>& run, int s) {
    if constexpr (codec_info(C).kind == CodecKind::scaled)
        return {scaled_value(run.scaled, 0, s), scaled_value(run.scaled, 1, s)};
    else
        return decode_plain<C>(run.columns[s]);
}

// Columns [begin, begin + 4 runs) of two rows for four tokens, summed from zero.
template <Codec C>
static inline void sum_columns(const uint8_t* codes, int begin, int runs, int cols,
                               const float* const (&x)[kThreadTokens], int pair, RowPair (&out)[kThreadTokens]) {
    constexpr int ahead = 4;
    RowPair sum[kThreadTokens][kFloatColumns] = {};
    for (int first = 0; first < runs; first += ahead) {
        FloatRun<C> loaded[ahead] = {};
        UNROLL
        for (int i = 0; i < ahead; ++i)
            if (first + i < runs) load_float_run<C>(codes, first + i, pair, loaded[i]);
        UNROLL
        for (int i = 0; i < ahead; ++i) {
            if (first + i >= runs) continue;
            UNROLL
            for (int s = 0; s < kFloatColumns; ++s) {
                const RowPair weights = float_column<C>(loaded[i], s);
                UNROLL
                for (int token = 0; token < kThreadTokens; ++token) {
                    const float value = activation(x[token], begin + kFloatColumns * (first + i) + s, cols);
                    RowPair& own = sum[token][s];
                    own = {fma(weights.first, value, own.first), fma(weights.second, value, own.second)};
                }
            }
        }
    }
    UNROLL
    for (int token = 0; token < kThreadTokens; ++token) {
        const RowPair(&a)[kFloatColumns] = sum[token];
        out[token] = {(a[0].first + a[1].first) + (a[2].first + a[3].first),
                      (a[0].second + a[1].second) + (a[2].second + a[3].second)};
    }
}

template <Codec C>
static inline void multiply_float_pair(const uint8_t* tile, int cols, const float* const (&x)[kThreadTokens], int pair,
                                       RowPair (&acc)[kThreadTokens]) {
    const int end = static_cast<int>(padded_cols(C, cols));
    if constexpr (codec_info(C).kind == CodecKind::plain) {
        sum_columns<C>(tile, 0, end / kFloatColumns, cols, x, pair, acc);
    } else {
        constexpr int block_cols = codec_info(C).block;
        for (int begin = 0; begin < end; begin += block_cols) {
            const ScaledBlock<C> block(tile, begin / block_cols);
            RowPair sums[kThreadTokens];
            sum_columns<C>(block.codes, begin, min(block_cols, end - begin) / kFloatColumns, cols, x, pair, sums);
            const float first = block.scale(2 * pair);
            const float second = block.scale(2 * pair + 1);
            UNROLL
            for (int token = 0; token < kThreadTokens; ++token)
                acc[token] = {fma(first, sums[token].first, acc[token].first),
                              fma(second, sums[token].second, acc[token].second)};
        }
    }
}

template <Codec C, class RowAt, class Write>
static inline void multiply_float_tiles(const uint8_t* first_tile, int tiles, int cols, const uint8_t* x, int tokens,
                                        RowAt row_at, Write write) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int m = warp % kTilesOfBlock;
    const int pair = lane % kPairsOfTile;
    const int first = (warp / kTilesOfBlock * (kWarp / kPairsOfTile) + lane / kPairsOfTile) * kThreadTokens;
    if (m >= tiles || first >= tokens) return;
    const float* rows[kThreadTokens];
    UNROLL
    for (int i = 0; i < kThreadTokens; ++i)
        rows[i] = reinterpret_cast<const float*>(x + row_at(min(first + i, tokens - 1)));
    const uint8_t* tile = first_tile + m * tile_bytes(C, cols);
    RowPair acc[kThreadTokens] = {};
    multiply_float_pair<C>(tile, cols, rows, pair, acc);
    UNROLL
    for (int i = 0; i < kThreadTokens; ++i) {
        if (first + i >= tokens) return;
        const int row = m * kTileRows + 2 * pair;
        write(row, first + i, canonical(acc[i].first * row_factor<C>(tile, 2 * pair)));
        write(row + 1, first + i, canonical(acc[i].second * row_factor<C>(tile, 2 * pair + 1)));
    }
}

// --- all codecs

// `tokens` is 1 .. kGroupTokens, `tiles` 1 or 2.
template <Codec C, class RowAt, class Write>
static inline void multiply_tiles(const uint8_t* first_tile, int tiles, int cols, const uint8_t* x, int tokens,
                                  RowAt row_at, Write write) {
    if constexpr (is_integer(C))
        multiply_integer_tiles<C>(first_tile, tiles, cols, x, tokens, row_at, write);
    else
        multiply_float_tiles<C>(first_tile, tiles, cols, x, tokens, row_at, write);
}

}  // namespace freetoken
