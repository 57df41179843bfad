// The kernels of one instruction set, as a table of functions. All tables give the same bits for the same input
// (docs/numerics.md), so the choice among them is a matter of speed alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/codec.h"
#include "core/gated_unit.h"

namespace freetoken {

// A packed matrix somewhere in memory, borrowed. `data` should be 64-byte aligned for speed.
struct PackedMatrix {
    Codec codec;
    int32_t rows;
    int32_t cols;
    const uint8_t* data;
};

// How activations are packed before a product: plain f32 for plain floats, f32 and what a table may add for scaled
// ones, blocks of 32 rounded to 16 bits for integer codecs. A row packed once serves every matrix of the same form and
// number of columns.
enum class ActivationForm { f32, scaled, q16 };

static constexpr ActivationForm activation_form(Codec codec) {
    switch (codec_info(codec).kind) {
        case CodecKind::plain:
            return ActivationForm::f32;
        case CodecKind::scaled:
            return ActivationForm::scaled;
        case CodecKind::integer:
            return ActivationForm::q16;
    }
    __builtin_unreachable();
}

// Packed activation rows `stride` bytes apart. Token t of a product is row index[t], or row t where index is null.
struct Activations {
    const uint8_t* data;
    size_t stride;
    const int32_t* index;

    const uint8_t* row(int t) const { return data + static_cast<size_t>(index != nullptr ? index[t] : t) * stride; }
};

// A gated unit as programs call it; nothing for a name that is not known.
std::optional<Glu> glu_named(std::string_view name, float alpha, float limit);

struct Kernels {
    const char* name;

    // Bytes of one packed activation row of `cols` values; a multiple of 64. Rows of one table mean nothing to another.
    size_t (*activation_bytes)(ActivationForm form, int cols);

    // Packs one row. For q16 a NaN or Inf spoils the results of this row and of no other.
    void (*pack_activations)(ActivationForm form, const float* x, int cols, uint8_t* out);

    // y[t * ldy + row] = dot(matrix row, token t) for rows of the tiles [tile_begin, tile_end) and t in [0, tokens).
    // Rows at and beyond matrix.rows are not written. Activations must have the matrix's form and columns.
    // The caller holds a FloatMode.
    void (*gemm)(const PackedMatrix& matrix, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy);

    // h[i] = glu(gate[i], up[i]), i in [0, n). h may be gate or up. Of relu2 gate may be null.
    void (*glu)(const Glu& glu, const float* gate, const float* up, int n, float* h);

    // The same from the output of a gate_up matrix: 16 values of gate, then 16 of up, in turn; n counts values of h.
    // The biases (n values each) are added first; null where there are none. h must not overlap gate_up.
    void (*glu_tiles)(const Glu& glu, const float* gate_up, const float* gate_bias, const float* up_bias, int n,
                      float* h);

    // Reads `bytes` (a multiple of 256) and returns a digest: the yardstick of memory bandwidth.
    uint64_t (*read)(const uint8_t* data, size_t bytes);
};

// The table called "scalar", "avx2" or "avx512"; null if this machine or this build lacks it.
const Kernels* kernels_for(std::string_view name);

// The fastest table of this machine.
const Kernels& best_kernels();

// Every table this machine can run, slowest first; "scalar" is always there.
std::span<const Kernels* const> available_kernels();

}  // namespace freetoken
