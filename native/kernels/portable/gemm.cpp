// Products, the contract of docs/numerics.md written out. Lanes are written as arrays of 16 so that a compiler may
// vectorise them; the order of every sum is fixed, so it cannot change a bit.
#include "core/packed_block.h"
#include "kernels/activations.h"
#include "kernels/portable/portable.h"

namespace freetoken::portable {
namespace {

using Lanes = float[kTileRows];

constexpr int kGroup = 8;  // tokens that share the decoding of weights

// A tile, and up to eight tokens to multiply it with.
struct Job {
    const PackedMatrix& matrix;
    const uint8_t* tile;
    const uint8_t* x[kGroup];
    int tokens;
};

// (a0 + a1) + (a2 + a3)
float sum_of_four(const Lanes (&a)[4], int row) {
    return (a[0][row] + a[1][row]) + (a[2][row] + a[3][row]);
}

// --- integer codecs

// One block of a tile: weights as integers, and what their sums are multiplied with.
struct Block {
    int16_t weight[kBlock][kTileRows];
    float first[kTileRows];  // of weights 0..15, or of all
    float second[kTileRows];
    float minimum[kTileRows];
    IntegerScales scales[kTileRows];  // in place of those above where has_integer_scales
};

template <Codec C>
void decode_block(const BlockPlace& at, Block& out) {
    int zero[kTileRows] = {};
    for (int row = 0; row < kTileRows; ++row) {
        if constexpr (has_integer_scales(C)) {
            out.scales[row] = read_integer_scales<C>(at.header, at.place, row);
        } else {
            const BlockScales scales = read_scales<C>(at.header, at.place, row);
            out.first[row] = scales.first;
            out.second[row] = scales.second;
            out.minimum[row] = scales.first_minimum;
            zero[row] = scales.zero;
        }
    }
    for (int k = 0; k < kBlock; ++k)
        for (int row = 0; row < kTileRows; ++row)
            out.weight[k][row] = static_cast<int16_t>(read_weight<C>(at.codes, row, k) - zero[row]);
}

// Of each row sum(q w) over weights [begin, end).
void sum_products(const Block& block, const QuantBlock& x, int begin, int end, int32_t (&sum)[kTileRows]) {
    for (int k = begin; k < end; ++k) {
        const int16_t q = static_cast<int16_t>(256 * x.hi[k] + x.lo[k]);
        for (int row = 0; row < kTileRows; ++row) sum[row] += block.weight[k][row] * q;
    }
}

// acc += scale * sum(q w) over weights [begin, end).
void add_products(const Block& block, const QuantBlock& x, int begin, int end, const Lanes& scale, Lanes& acc) {
    int32_t sum[kTileRows] = {};
    sum_products(block, x, begin, end, sum);
    for (int row = 0; row < kTileRows; ++row)
        acc[row] = fma(scale[row] * x.scale, static_cast<float>(sum[row]), acc[row]);
}

template <Codec C>
void add_block(const Block& block, const QuantBlock& x, Lanes& acc) {
    if constexpr (has_integer_scales(C)) {
        int32_t products[2][kTileRows] = {};
        for (int half = 0; half < 2; ++half)
            sum_products(block, x, half * kBlock / 2, (half + 1) * kBlock / 2, products[half]);
        for (int row = 0; row < kTileRows; ++row)
            acc[row] = add_halves<C>(block.scales[row], {products[0][row], products[1][row]},
                                     {half_sum(x, 0), half_sum(x, 1)}, x.scale, acc[row]);
    } else if constexpr (has_half_scales(C)) {
        add_products(block, x, 0, kBlock / 2, block.first, acc);
        add_products(block, x, kBlock / 2, kBlock, block.second, acc);
    } else {
        add_products(block, x, 0, kBlock, block.first, acc);
        if constexpr (has_minimum(C))
            for (int row = 0; row < kTileRows; ++row) acc[row] = fma(block.minimum[row] * x.scale, x.sum, acc[row]);
    }
}

template <Codec C>
void integer_tile(const Job& job, Lanes (&out)[kGroup]) {
    constexpr CodecInfo info = codec_info(C);
    const int blocks = job.matrix.cols / kBlock;
    Lanes acc[kGroup][4] = {};
    for (int s = 0; s < 4; ++s)
        for (int b = segment_begin(s, blocks); b < segment_begin(s + 1, blocks); ++b) {
            Block block;
            decode_block<C>(find_block<C>(job.tile, b), block);
            for (int t = 0; t < job.tokens; ++t)
                add_block<C>(block, load<QuantBlock>(job.x[t] + static_cast<size_t>(b) * sizeof(QuantBlock)),
                             acc[t][s]);
        }
    for (int t = 0; t < job.tokens; ++t)
        for (int row = 0; row < kTileRows; ++row) {
            const float factor = info.row_line ? load<float>(job.tile + 4 * row) : info.post;
            out[t][row] = sum_of_four(acc[t], row) * factor;
        }
}

// --- float codecs

// acc[k mod 4] += weight * x[k], for four columns from k on.
void add_columns(const Lanes (&weight)[kFloatColumns], const Job& job, int64_t k, Lanes (&acc)[kGroup][kFloatColumns]) {
    for (int t = 0; t < job.tokens; ++t)
        for (int s = 0; s < kFloatColumns; ++s) {
            const float x = load<float>(job.x[t] + static_cast<size_t>(k + s) * sizeof(float));
            for (int row = 0; row < kTileRows; ++row) acc[t][s][row] = fma(weight[s][row], x, acc[t][s][row]);
        }
}

float plain_weight(Codec codec, const uint8_t* p) {
    if (codec == Codec::f16) return half_to_float(load<uint16_t>(p));
    if (codec == Codec::bf16) return bfloat_to_float(load<uint16_t>(p));
    return load<float>(p);
}

void plain_tile(const Job& job, Lanes (&out)[kGroup]) {
    const Codec codec = job.matrix.codec;
    const int size = codec_info(codec).code_bytes;
    const int64_t cols = padded_cols(codec, job.matrix.cols);
    Lanes acc[kGroup][kFloatColumns] = {};
    for (int64_t k = 0; k < cols; k += kFloatColumns) {
        Lanes weight[kFloatColumns];
        for (int s = 0; s < kFloatColumns; ++s)
            for (int row = 0; row < kTileRows; ++row)
                weight[s][row] = plain_weight(codec, job.tile + ((k + s) * kTileRows + row) * size);
        add_columns(weight, job, k, acc);
    }
    for (int t = 0; t < job.tokens; ++t)
        for (int row = 0; row < kTileRows; ++row) out[t][row] = sum_of_four(acc[t], row);
}

// A run of four columns of 8-bit floats: 16-bit words of columns 0 and 2, then of 1 and 3.
void decode_run(const uint8_t* run, Lanes (&weight)[kFloatColumns]) {
    for (int s = 0; s < kFloatColumns; ++s)
        for (int row = 0; row < kTileRows; ++row) weight[s][row] = e4m3_over_256(run[s % 2 * 32 + 2 * row + s / 2]);
}

void scaled_tile(const Job& job, Lanes (&out)[kGroup]) {
    const CodecInfo& info = codec_info(job.matrix.codec);
    const int64_t cols = padded_cols(info.codec, job.matrix.cols);
    const uint8_t* p = job.tile;
    const uint8_t* header = p;
    Lanes acc[kGroup] = {};
    for (int64_t block = 0; block * info.block < cols; ++block) {
        const int64_t begin = block * info.block;
        const int64_t end = begin + info.block < cols ? begin + info.block : cols;
        if (block % info.group_blocks == 0) {
            header = p;
            p += kScaleLine;
        }
        Lanes sums[kGroup][kFloatColumns] = {};
        for (int64_t k = begin; k < end; k += kFloatColumns, p += kFloatColumns * kTileRows) {
            Lanes weight[kFloatColumns];
            decode_run(p, weight);
            add_columns(weight, job, k, sums);
        }
        Lanes scale;
        for (int row = 0; row < kTileRows; ++row)
            scale[row] = info.codec == Codec::mxfp8 ? e8m0_to_float(header[row]) : load<float>(header + 4 * row);
        header += info.scale_bytes * kTileRows;
        for (int t = 0; t < job.tokens; ++t)
            for (int row = 0; row < kTileRows; ++row)
                acc[t][row] = fma(scale[row], sum_of_four(sums[t], row), acc[t][row]);
    }
    for (int t = 0; t < job.tokens; ++t)
        for (int row = 0; row < kTileRows; ++row) out[t][row] = acc[t][row] * info.post;
}

void run_tile(const Job& job, Lanes (&out)[kGroup]) {
    switch (codec_info(job.matrix.codec).kind) {
        case CodecKind::integer:
            with_integer_codec(job.matrix.codec, [&]<Codec C>() { integer_tile<C>(job, out); });
            return;
        case CodecKind::scaled:
            scaled_tile(job, out);
            return;
        case CodecKind::plain:
            plain_tile(job, out);
    }
}

}  // namespace

void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y, size_t ldy) {
    const size_t stride = static_cast<size_t>(tile_bytes(m.codec, m.cols));
    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const int first_row = tile * kTileRows;
        const int rows = m.rows - first_row < kTileRows ? m.rows - first_row : kTileRows;
        for (int first = 0; first < tokens; first += kGroup) {
            const int count = tokens - first < kGroup ? tokens - first : kGroup;
            Job job = {m, m.data + static_cast<size_t>(tile) * stride, {}, count};
            for (int t = 0; t < count; ++t) job.x[t] = x.row(first + t);
            Lanes out[kGroup];
            run_tile(job, out);
            for (int t = 0; t < count; ++t) {
                float* row = y + static_cast<size_t>(first + t) * ldy + static_cast<size_t>(first_row);
                for (int r = 0; r < rows; ++r) row[r] = canonical(out[t][r]);
            }
        }
    }
}

}  // namespace freetoken::portable
