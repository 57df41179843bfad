// The scalar twin, for any processor: packing of activations, gated units, the bandwidth yardstick, and the table.
#include <cstring>

#include "kernels/activations.h"
#include "kernels/portable/portable.h"
#include "kernels/tables.h"

namespace freetoken::portable {
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
    if (form != ActivationForm::q16) {
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

void glu_rows(const Glu& glu, const float* gate, const float* up, int n, float* h) {
    for (int i = 0; i < n; ++i) h[i] = glu_value(glu, gate != nullptr ? gate[i] : up[i], up[i]);
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
}  // namespace freetoken::portable

namespace freetoken {

const Kernels kScalarKernels = {"scalar",       portable::activation_bytes, portable::pack_activations,
                                portable::gemm, portable::glu_rows,         portable::glu_tiles,
                                portable::read};

}  // namespace freetoken
