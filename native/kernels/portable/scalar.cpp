// The scalar twin: the contract written out, for any processor. Lanes are written as arrays of 16 so that a compiler
// may vectorise them; the order of every sum is fixed, so it cannot change a bit.
#include <cstring>

#include "kernels/activations.h"
#include "kernels/kernels.h"
#include "kernels/tables.h"

namespace freetoken {
namespace {

size_t activation_bytes(ActivationForm form, int cols) {
    const size_t n = static_cast<size_t>(cols);
    if (form == ActivationForm::q16) return round_up_64((n + kBlock - 1) / kBlock * sizeof(QuantBlock));
    return round_up_64((n + kFloatColumns - 1) / kFloatColumns * kFloatColumns * sizeof(float));
}

void quantise_block(const float* x, QuantBlock& out) {
    float largest = 0.0f;
    bool finite = true;
    for (int k = 0; k < kBlock; ++k) {
        finite = finite && is_finite(x[k]);
        const float magnitude = float_of(bits_of(x[k]) & 0x7FFFFFFFu);
        if (magnitude > largest) largest = magnitude;
    }
    if (!finite || largest < kTinyBlock) {
        out = QuantBlock{};
        if (!finite) out.scale = float_of(kCanonicalNan);
        return;
    }
    out.scale = largest / static_cast<float>(kQuantMax);
    const float inverse = static_cast<float>(kQuantMax) / largest;
    int sums[2] = {};
    for (int k = 0; k < kBlock; ++k) {
        const float rounded = x[k] * inverse + kRoundMagic;
        const int q = static_cast<int>(bits_of(rounded) - kRoundMagicBits);
        const int8_t lo = static_cast<int8_t>(q);
        out.lo[k] = lo;
        out.hi[k] = static_cast<int8_t>((q - lo) / 256);
        sums[k / 16] += q;
    }
    set_sums(out, sums[0], sums[1]);
}

void pack_activations(ActivationForm form, const float* x, int cols, uint8_t* out) {
    if (form == ActivationForm::f32) {
        const size_t used = static_cast<size_t>(cols) * sizeof(float);
        std::memcpy(out, x, used);
        std::memset(out + used, 0, activation_bytes(form, cols) - used);
        return;
    }
    for (int k = 0; k < cols; k += kBlock) {
        float padded[kBlock] = {};
        const int n = cols - k < kBlock ? cols - k : kBlock;
        std::memcpy(padded, x + k, static_cast<size_t>(n) * sizeof(float));
        QuantBlock block;
        quantise_block(padded, block);
        std::memcpy(out + static_cast<size_t>(k / kBlock) * sizeof block, &block, sizeof block);
    }
}

uint16_t load_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// One block of a tile: weights as integers, and what they are multiplied with.
struct Block {
    int16_t weight[kBlock][kTileRows];
    float scale[kTileRows];
    float minimum[kTileRows];  // q4_1 only
};

void decode_block(Codec codec, const uint8_t* scales, const uint8_t* codes, Block& out) {
    const int zero = codec_info(codec).zero;
    for (int k = 0; k < kBlock; ++k)
        for (int row = 0; row < kTileRows; ++row) {
            if (codec == Codec::q8_0) {
                out.weight[k][row] = static_cast<int16_t>(codes[k / 4 * 64 + row * 4 + k % 4] - zero);
                continue;
            }
            const uint8_t byte = codes[k / 8 * 64 + row * 4 + k % 4];
            const int nibble = k % 8 < 4 ? byte & 15 : byte >> 4;
            out.weight[k][row] = static_cast<int16_t>(codec == Codec::mxfp4 ? kE2m1Doubled[nibble] : nibble - zero);
        }
    for (int row = 0; row < kTileRows; ++row) {
        const uint8_t* scale = scales + codec_info(codec).scale_bytes * row;
        out.scale[row] = codec == Codec::mxfp4 ? e8m0_to_float(*scale) : half_to_float(load_u16(scale));
        out.minimum[row] = codec == Codec::q4_1 ? half_to_float(load_u16(scale + 2)) : 0.0f;
    }
}

using Lanes = float[kTileRows];

void add_block(Codec codec, const Block& block, const QuantBlock& x, Lanes& acc) {
    int32_t sum[kTileRows] = {};
    for (int k = 0; k < kBlock; ++k) {
        const int16_t q = static_cast<int16_t>(256 * x.hi[k] + x.lo[k]);
        for (int row = 0; row < kTileRows; ++row) sum[row] += block.weight[k][row] * q;
    }
    for (int row = 0; row < kTileRows; ++row) {
        acc[row] = fma(block.scale[row] * x.scale, static_cast<float>(sum[row]), acc[row]);
        if (codec == Codec::q4_1) acc[row] = fma(block.minimum[row] * x.scale, x.sum, acc[row]);
    }
}

constexpr int kGroup = 8;  // tokens that share the decoding of a block

// Results of sixteen rows and up to eight tokens.
void integer_tile(const PackedMatrix& m, const uint8_t* tile, const uint8_t* const* x, int tokens,
                  Lanes (&out)[kGroup]) {
    const CodecInfo& info = codec_info(m.codec);
    const int blocks = m.cols / info.block;
    const int tile_code_bytes = info.code_bytes * kTileRows;
    const int group_bytes = kScaleLine + info.group_blocks * tile_code_bytes;
    Lanes acc[kGroup][4] = {};
    for (int s = 0; s < 4; ++s)
        for (int b = segment_begin(s, blocks); b < segment_begin(s + 1, blocks); ++b) {
            const int within = b % info.group_blocks;
            const uint8_t* group = tile + static_cast<ptrdiff_t>(b / info.group_blocks) * group_bytes;
            Block block;
            decode_block(m.codec, group + within * info.scale_bytes * kTileRows,
                         group + kScaleLine + within * tile_code_bytes, block);
            for (int t = 0; t < tokens; ++t) {
                QuantBlock q;
                std::memcpy(&q, x[t] + static_cast<size_t>(b) * sizeof q, sizeof q);
                add_block(m.codec, block, q, acc[t][s]);
            }
        }
    for (int t = 0; t < tokens; ++t)
        for (int row = 0; row < kTileRows; ++row)
            out[t][row] = ((acc[t][0][row] + acc[t][1][row]) + (acc[t][2][row] + acc[t][3][row])) * info.post;
}

float load_weight(Codec codec, const uint8_t* p) {
    if (codec == Codec::f16) return half_to_float(load_u16(p));
    if (codec == Codec::bf16) return bfloat_to_float(load_u16(p));
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

void float_tile(const PackedMatrix& m, const uint8_t* tile, const uint8_t* const* x, int tokens, Lanes (&out)[kGroup]) {
    const int size = codec_info(m.codec).code_bytes;
    Lanes acc[kGroup][kFloatColumns] = {};
    for (int k = 0; k < padded_cols(m.codec, m.cols); ++k) {
        const uint8_t* column = tile + static_cast<ptrdiff_t>(k) * kTileRows * size;
        Lanes weight;
        for (int row = 0; row < kTileRows; ++row) weight[row] = load_weight(m.codec, column + row * size);
        for (int t = 0; t < tokens; ++t) {
            float value;
            std::memcpy(&value, x[t] + static_cast<size_t>(k) * sizeof value, sizeof value);
            Lanes& a = acc[t][k % kFloatColumns];
            for (int row = 0; row < kTileRows; ++row) a[row] = fma(weight[row], value, a[row]);
        }
    }
    for (int t = 0; t < tokens; ++t)
        for (int row = 0; row < kTileRows; ++row)
            out[t][row] = (acc[t][0][row] + acc[t][1][row]) + (acc[t][2][row] + acc[t][3][row]);
}

void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y, size_t ldy) {
    const size_t stride = static_cast<size_t>(tile_bytes(m.codec, m.cols));
    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* data = m.data + static_cast<size_t>(tile) * stride;
        const int first_row = tile * kTileRows;
        const int rows = m.rows - first_row < kTileRows ? m.rows - first_row : kTileRows;
        for (int first = 0; first < tokens; first += kGroup) {
            const int count = tokens - first < kGroup ? tokens - first : kGroup;
            const uint8_t* pointers[kGroup];
            for (int t = 0; t < count; ++t) pointers[t] = x.row(first + t);
            Lanes out[kGroup];
            if (is_float(m.codec)) {
                float_tile(m, data, pointers, count, out);
            } else {
                integer_tile(m, data, pointers, count, out);
            }
            for (int t = 0; t < count; ++t) {
                float* row = y + static_cast<size_t>(first + t) * ldy + static_cast<size_t>(first_row);
                for (int r = 0; r < rows; ++r) row[r] = canonical(out[t][r]);
            }
        }
    }
}

float glu_value(const Glu& glu, float gate, float up) {
    return glu.kind == GluKind::silu ? silu_glu(gate, up) : clamped_silu_glu(gate, up, glu.alpha, glu.limit);
}

void glu_rows(const Glu& glu, const float* gate, const float* up, int n, float* h) {
    for (int i = 0; i < n; ++i) h[i] = glu_value(glu, gate[i], up[i]);
}

void glu_tiles(const Glu& glu, const float* gate_up, const float* gate_bias, const float* up_bias, int n, float* h) {
    for (int i = 0; i < n; ++i) {
        const float* pair = gate_up + i / kTileRows * 2 * kTileRows + i % kTileRows;
        const float gate = gate_bias != nullptr ? pair[0] + gate_bias[i] : pair[0];
        const float up = up_bias != nullptr ? pair[kTileRows] + up_bias[i] : pair[kTileRows];
        h[i] = glu_value(glu, gate, up);
    }
}

uint64_t read(const uint8_t* data, size_t bytes) {
    uint64_t digest[8] = {};
    for (size_t i = 0; i < bytes; i += sizeof digest) {
        uint64_t line[8];
        std::memcpy(line, data + i, sizeof line);
        for (int w = 0; w < 8; ++w) digest[w] ^= line[w];
    }
    uint64_t all = 0;
    for (const uint64_t d : digest) all ^= d;
    return all;
}

}  // namespace

const Kernels kScalarKernels = {"scalar", activation_bytes, pack_activations, gemm, glu_rows, glu_tiles, read};

}  // namespace freetoken
