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
    int sum = 0;
    for (int k = 0; k < kBlock; ++k) {
        const float rounded = x[k] * inverse + kRoundMagic;
        const int q = static_cast<int>(bits_of(rounded) - kRoundMagicBits);
        const int8_t lo = static_cast<int8_t>(q);
        out.lo[k] = lo;
        out.hi[k] = static_cast<int8_t>((q - lo) / 256);
        sum += q;
    }
    out.sum = static_cast<float>(sum);
    out.minus_8_sums = -8 * sum;
    out.minus_12_sums = -12 * sum;
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

// One block of one row: the weights as integers.
void decode_codes(Codec codec, const uint8_t* codes, int row, int (&w)[kBlock]) {
    const int zero = codec_info(codec).zero;
    for (int k = 0; k < kBlock; ++k) {
        if (codec == Codec::q8_0) {
            w[k] = codes[k / 4 * 64 + row * 4 + k % 4] - zero;
            continue;
        }
        const uint8_t byte = codes[k / 8 * 64 + row * 4 + k % 4];
        const int nibble = k % 8 < 4 ? byte & 15 : byte >> 4;
        w[k] = codec == Codec::mxfp4 ? kE2m1Doubled[nibble] : nibble - zero;
    }
}

float block_scale(Codec codec, const uint8_t* scales, int row) {
    switch (codec) {
        case Codec::mxfp4:
            return e8m0_to_float(scales[row]);
        case Codec::q4_1:
            return half_to_float(load_u16(scales + 4 * row));
        default:
            return half_to_float(load_u16(scales + 2 * row));
    }
}

float integer_dot(const PackedMatrix& m, const uint8_t* tile, int row, const uint8_t* x) {
    const CodecInfo& info = codec_info(m.codec);
    const int blocks = m.cols / info.block;
    const int tile_code_bytes = info.code_bytes * kTileRows;
    const int group_bytes = kScaleLine + info.group_blocks * tile_code_bytes;
    float segment[4];
    for (int s = 0; s < 4; ++s) {
        float acc = 0.0f;
        for (int b = segment_begin(s, blocks); b < segment_begin(s + 1, blocks); ++b) {
            const int within = b % info.group_blocks;
            const uint8_t* group = tile + static_cast<ptrdiff_t>(b / info.group_blocks) * group_bytes;
            const uint8_t* scales = group + within * info.scale_bytes * kTileRows;
            int w[kBlock];
            decode_codes(m.codec, group + kScaleLine + within * tile_code_bytes, row, w);
            QuantBlock q;
            std::memcpy(&q, x + static_cast<size_t>(b) * sizeof q, sizeof q);
            int sum = 0;
            for (int k = 0; k < kBlock; ++k) sum += w[k] * (256 * q.hi[k] + q.lo[k]);
            acc = fma(block_scale(m.codec, scales, row) * q.scale, static_cast<float>(sum), acc);
            if (m.codec == Codec::q4_1) acc = fma(half_to_float(load_u16(scales + 4 * row + 2)) * q.scale, q.sum, acc);
        }
        segment[s] = acc;
    }
    return canonical(((segment[0] + segment[1]) + (segment[2] + segment[3])) * info.post);
}

float load_weight(Codec codec, const uint8_t* p) {
    if (codec == Codec::f16) return half_to_float(load_u16(p));
    if (codec == Codec::bf16) return bfloat_to_float(load_u16(p));
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

float float_dot(const PackedMatrix& m, const uint8_t* tile, int row, const uint8_t* x) {
    const size_t size = static_cast<size_t>(codec_info(m.codec).code_bytes);
    float acc[4] = {};
    for (int k = 0; k < padded_cols(m.codec, m.cols); ++k) {
        float value;
        std::memcpy(&value, x + static_cast<size_t>(k) * sizeof value, sizeof value);
        const float w =
            load_weight(m.codec, tile + (static_cast<size_t>(k) * kTileRows + static_cast<size_t>(row)) * size);
        acc[k % 4] = fma(w, value, acc[k % 4]);
    }
    return canonical((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y, size_t ldy) {
    const size_t stride = static_cast<size_t>(tile_bytes(m.codec, m.cols));
    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* data = m.data + static_cast<size_t>(tile) * stride;
        const int rows = m.rows - tile * kTileRows < kTileRows ? m.rows - tile * kTileRows : kTileRows;
        for (int t = 0; t < tokens; ++t)
            for (int row = 0; row < rows; ++row)
                y[static_cast<size_t>(t) * ldy + static_cast<size_t>(tile * kTileRows + row)] =
                    is_float(m.codec) ? float_dot(m, data, row, x.row(t)) : integer_dot(m, data, row, x.row(t));
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
