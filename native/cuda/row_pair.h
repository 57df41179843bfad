// One tile times one row of activations by one warp: what linear.cu and expert.cu share.
//
// A thread owns two neighbouring rows and one of the four sums of the contract: a segment of an integer codec, the
// columns k mod 4 of plain values; of scaled floats every fourth block. Eight threads read a whole line of 64 bytes,
// the four sums read four, and the loads of two or four blocks (64 to 128 bytes a thread, 2 to 4 KiB a warp) are under
// way before the first of them is multiplied. Codes pass the first cache by, so that activations stay in it: per block
// of 32 a thread reads 80 or 96 bytes of activations (5 or 6 loads, the same for eight threads) for 2 x 16 bytes of
// nibbles.
// Instructions (of PTX, sm_90) for 1 KiB that a warp reads: q4_0 124, q4_k 154, mxfp4 198, nvfp4 229, and 130 for 2 KiB
// of q8_0; a multiprocessor starts four a cycle, hence 18 to 63 bytes a cycle, or, on 132 of them at 1.7 GHz, 4
// TB/s and more. No spills: 53 to 90 registers, so at least 10 blocks of 64 threads, 40 KiB and more under way.
#pragma once

#include "cuda/decode.h"

namespace freetoken {

inline constexpr int kPairsOfTile = kTileRows / 2;

// Rows 2 pair and 2 pair + 1.
struct RowPair {
    float first, second;
};

// The pair as thread `lane` of the warp has it.
static inline RowPair shuffle_pair(const RowPair& pair, int lane) {
    const unsigned long long bits = static_cast<unsigned long long>(bits_of(pair.second)) << 32 | bits_of(pair.first);
    const unsigned long long other = __shfl_sync(kAllLanes, bits, lane);
    return {float_of(static_cast<uint32_t>(other)), float_of(static_cast<uint32_t>(other >> 32))};
}

// --- integer codecs

template <Codec C>
struct BlockOfPair {
    uint2 codes[kCodeWords<C>];  // x of the first row, y of the second
    ScaleWords scales[2];
};

template <Codec C>
static inline void load_block(const uint8_t* tile, int block, int pair, BlockOfPair<C>& out) {
    const BlockOffsets at = block_offsets<C>(block);
    const uint8_t* codes = tile + at.codes + 8 * pair;
    UNROLL
    for (int w = 0; w < kCodeWords<C>; ++w) out.codes[w] = load_stream_pair(codes + kScaleLine * w);
    out.scales[0] = load_scales<C>(tile, at, 2 * pair);
    out.scales[1] = load_scales<C>(tile, at, 2 * pair + 1);
}

// A row's weights, or the high or low bytes of q: those of each scale of a block together.
template <Codec C>
inline constexpr int kWordsOfScale = kBlock / 4 / kHalves<C>;
template <Codec C>
using BlockWords = uint32_t[kHalves<C>][kWordsOfScale<C>];

template <Codec C>
static inline void load_words(const int8_t* bytes, BlockWords<C>& words) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const uint4 four = load_vector(bytes + 16 * i);
        uint32_t* part = words[i * kHalves<C> / 2] + 4 * i % kWordsOfScale<C>;
        part[0] = four.x;
        part[1] = four.y;
        part[2] = four.z;
        part[3] = four.w;
    }
}

template <Codec C>
static inline void decode_words(const uint32_t (&codes)[kCodeWords<C>], BlockWords<C>& words) {
    UNROLL
    for (int j = 0; j < kLinesOfBlock; ++j) {
        WordsOfEight<C> own;
        for (int i = 0; i < words_of_eight(C); ++i) own[i] = codes[word_of_eight<C>(j, i)];
        const Eight weights = decode_eight<C>(own, j);
        uint32_t* part = words[j * kHalves<C> / kLinesOfBlock] + 2 * j % kWordsOfScale<C>;
        part[0] = weights.low;
        part[1] = weights.high;
    }
}

// acc plus a row's block times one of activations.
template <Codec C>
static inline float add_block(const uint32_t (&codes)[kCodeWords<C>], const ScaleWords& words, const BlockSums& sums,
                              const BlockWords<C>& hi, const BlockWords<C>& lo, float acc) {
    BlockWords<C> weights;
    decode_words<C>(codes, weights);
    const Scales<C> scales = decode_scales<C>(words);
    int products[kHalves<C>];
    UNROLL
    for (int half = 0; half < kHalves<C>; ++half) {
        const int high = dot_words(weights[half], hi[half], 0);
        products[half] = dot_words(weights[half], lo[half], zero_sum<C>(sums, half));
        products[half] += static_cast<int>(static_cast<uint32_t>(high) << 8);
    }
    if constexpr (has_integer_scales(C)) {
        return add_halves<C>(scales, products, sums, acc);
    } else {
        if constexpr (has_zero_point(C)) products[0] += scales.zero * sums.minus_8_sums >> 3;  // exact
        UNROLL
        for (int half = 0; half < kHalves<C>; ++half)
            acc = fma((half == 0 ? scales.first : scales.second) * sums.scale, static_cast<float>(products[half]), acc);
        if constexpr (has_minimum(C)) acc = add_minimum(scales, sums, acc);
        return acc;
    }
}

// Segment `part` of two rows.
template <Codec C>
static inline RowPair segment_of_pair(const uint8_t* tile, int cols, const QuantBlock* x, int pair, int part) {
    constexpr int ahead = kCodeWords<C> > 4 ? 2 : 4;
    const int blocks = cols / kBlock;
    const int end = segment_begin(part + 1, blocks);
    RowPair acc = {0.0f, 0.0f};
    for (int begin = segment_begin(part, blocks); begin < end; begin += ahead) {
        BlockOfPair<C> loaded[ahead] = {};
        UNROLL
        for (int i = 0; i < ahead; ++i)
            if (begin + i < end) load_block<C>(tile, begin + i, pair, loaded[i]);
        UNROLL
        for (int i = 0; i < ahead; ++i) {
            if (begin + i >= end) continue;
            const QuantBlock* block = x + begin + i;
            const BlockSums sums = load_sums<C>(block);
            BlockWords<C> hi, lo;
            load_words<C>(block->hi, hi);
            load_words<C>(block->lo, lo);
            uint32_t codes[2][kCodeWords<C>];
            UNROLL
            for (int w = 0; w < kCodeWords<C>; ++w) {
                codes[0][w] = loaded[i].codes[w].x;
                codes[1][w] = loaded[i].codes[w].y;
            }
            acc.first = add_block<C>(codes[0], loaded[i].scales[0], sums, hi, lo, acc.first);
            acc.second = add_block<C>(codes[1], loaded[i].scales[1], sums, hi, lo, acc.second);
        }
    }
    return acc;
}

// --- plain codecs and scaled floats

// The value of a column that may be one of the zeros that pad a row.
static inline float activation(const float* x, int column, int cols) {
    return column < cols ? x[column] : 0.0f;
}

static inline float plain_value(Codec codec, uint32_t bits) {
    return codec == Codec::f16 ? half_value(bits) : bfloat_to_float(static_cast<uint16_t>(bits));
}

// One column of two rows of plain values, as it lies.
template <Codec C>
static inline uint2 load_plain(const uint8_t* tile, int column, int pair) {
    if constexpr (C == Codec::f32) return load_stream_pair(tile + (column * kPairsOfTile + pair) * 8);
    return {load_stream_word(tile + (column * kPairsOfTile + pair) * 4), 0};
}

template <Codec C>
static inline RowPair decode_plain(uint2 bits) {
    if constexpr (C == Codec::f32) return {float_of(bits.x), float_of(bits.y)};
    return {plain_value(C, bits.x & 0xFFFFu), plain_value(C, bits.x >> 16)};
}

// Columns k with k mod 4 = part of two rows.
template <Codec C>
static inline RowPair columns_of_pair(const uint8_t* tile, int cols, const float* x, int pair, int part) {
    constexpr int ahead = C == Codec::f32 ? 8 : 16;
    const int end = static_cast<int>(padded_cols(C, cols));
    RowPair acc = {0.0f, 0.0f};
    for (int begin = part; begin < end; begin += kFloatColumns * ahead) {
        uint2 loaded[ahead] = {};
        UNROLL
        for (int i = 0; i < ahead; ++i)
            if (begin + kFloatColumns * i < end) loaded[i] = load_plain<C>(tile, begin + kFloatColumns * i, pair);
        UNROLL
        for (int i = 0; i < ahead; ++i) {
            const int column = begin + kFloatColumns * i;
            if (column >= end) continue;
            const RowPair weights = decode_plain<C>(loaded[i]);
            const float value = activation(x, column, cols);
            acc.first = fma(weights.first, value, acc.first);
            acc.second = fma(weights.second, value, acc.second);
        }
    }
    return acc;
}

// Where the runs of four columns of a block of scaled floats begin, and its scales.
template <Codec C>
struct ScaledBlock {
    static constexpr CodecInfo kInfo = codec_info(C);
    const uint8_t* header;
    const uint8_t* codes;
    int place;

    ScaledBlock(const uint8_t* tile, int block) {
        constexpr int code_bytes = kInfo.code_bytes * kTileRows;
        const int group = block / kInfo.group_blocks;
        place = block % kInfo.group_blocks;
        header = tile + group * (kScaleLine + kInfo.group_blocks * code_bytes);
        codes = header + kScaleLine + place * code_bytes;
    }
    float scale(int row) const {
        if constexpr (C == Codec::mxfp8) return e8m0_to_float(header[place * kTileRows + row]);
        return load_aligned<float>(header + 4 * row);
    }
};

// Four columns of two rows: a word of columns 0 and 2 of both, and one of columns 1 and 3.
struct ScaledRun {
    uint32_t even, odd;
};

static inline ScaledRun load_run(const uint8_t* codes, int run, int pair) {
    const uint8_t* own = codes + kScaleLine * run + 4 * pair;
    return {load_stream_word(own), load_stream_word(own + kScaleLine / 2)};
}

static inline float scaled_value(const ScaledRun& run, int row, int column) {
    const uint32_t word = column % 2 == 0 ? run.even : run.odd;
    return e4m3_over_256(static_cast<uint8_t>(word >> (16 * row + 8 * (column / 2))));
}

// Columns [begin, begin + 4 runs) of two rows, summed by themselves: one block of scaled floats.
template <Codec C>
static inline RowPair block_of_pair(const uint8_t* codes, int begin, int runs, int cols, const float* x, int pair) {
    constexpr int ahead = 8;
    float sum[2][kFloatColumns] = {};
    for (int first = 0; first < runs; first += ahead) {
        ScaledRun loaded[ahead] = {};
        UNROLL
        for (int i = 0; i < ahead; ++i)
            if (first + i < runs) loaded[i] = load_run(codes, first + i, pair);
        UNROLL
        for (int i = 0; i < ahead; ++i) {
            if (first + i >= runs) continue;
            UNROLL
            for (int s = 0; s < kFloatColumns; ++s) {
                const float value = activation(x, begin + kFloatColumns * (first + i) + s, cols);
                sum[0][s] = fma(scaled_value(loaded[i], 0, s), value, sum[0][s]);
                sum[1][s] = fma(scaled_value(loaded[i], 1, s), value, sum[1][s]);
            }
        }
    }
    return {(sum[0][0] + sum[0][1]) + (sum[0][2] + sum[0][3]), (sum[1][0] + sum[1][1]) + (sum[1][2] + sum[1][3])};
}

// Two rows of scaled floats: four blocks at a time, one a part, put together by all parts alike.
template <Codec C>
static inline RowPair scaled_pair(const uint8_t* tile, int cols, const float* x, int pair, int part) {
    constexpr int block_cols = codec_info(C).block;
    const int end = static_cast<int>(padded_cols(C, cols));
    const int blocks = (cols + block_cols - 1) / block_cols;
    RowPair acc = {0.0f, 0.0f};
    for (int first = 0; first < blocks; first += 4) {
        RowPair own = {0.0f, 0.0f};
        const int begin = (first + part) * block_cols;
        if (begin < end) {
            const int columns = min(block_cols, end - begin);
            const ScaledBlock<C> block(tile, first + part);
            own = block_of_pair<C>(block.codes, begin, columns / kFloatColumns, cols, x, pair);
        }
        for (int i = 0; i < 4; ++i) {
            const RowPair sum = shuffle_pair(own, i * kPairsOfTile + pair);
            if (first + i >= blocks) continue;
            const ScaledBlock<C> block(tile, first + i);
            acc.first = fma(block.scale(2 * pair), sum.first, acc.first);
            acc.second = fma(block.scale(2 * pair + 1), sum.second, acc.second);
        }
    }
    return acc;
}

// --- all codecs

// Rows 2 (lane mod 8) and the next of a tile times a row of activations, by all lanes of a warp: (a0 + a1) + (a2 + a3),
// times what the row is multiplied with. Every lane has the result of its pair.
template <Codec C>
static inline RowPair multiply_pair(const uint8_t* tile, int cols, const uint8_t* x, int lane) {
    const int pair = lane % kPairsOfTile;
    const int part = lane / kPairsOfTile;
    RowPair sum;
    if constexpr (codec_info(C).kind == CodecKind::scaled) {
        sum = scaled_pair<C>(tile, cols, reinterpret_cast<const float*>(x), pair, part);
    } else {
        if constexpr (is_integer(C))
            sum = segment_of_pair<C>(tile, cols, reinterpret_cast<const QuantBlock*>(x), pair, part);
        else
            sum = columns_of_pair<C>(tile, cols, reinterpret_cast<const float*>(x), pair, part);
        for (int distance = kPairsOfTile; distance < kWarp; distance *= 2) {
            const RowPair other = shuffle_pair(sum, lane ^ distance);
            sum = {sum.first + other.first, sum.second + other.second};
        }
    }
    return {canonical(sum.first * row_factor<C>(tile, 2 * pair)),
            canonical(sum.second * row_factor<C>(tile, 2 * pair + 1))};
}

}  // namespace freetoken
