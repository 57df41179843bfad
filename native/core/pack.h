// Raw rows of a checkpoint to packed tiles, and packed tiles back to f32.
#pragma once

#include <cstdint>
#include <optional>

#include "core/codec.h"

namespace freetoken {

// A scale that is not a finite number; the caller makes a sentence of it.
struct BadScale {
    int64_t row;    // counted from the first row passed in
    int64_t block;  // block of 32 within the row
    uint32_t bits;  // the scale's own bits: fp16 or e8m0
};

// Packs `rows` raw rows of `cols` weights into tiles; the first row is the first row of a tile.
//
// Rows lie raw_row_bytes(codec, cols) apart. Tile i is written at tiles + i * tile_stride; tile_stride is
// tile_bytes(codec, cols), or a multiple of it where tiles of several matrices take turns. The last tile is filled up
// with zero weights. Every byte of each tile is written. Returns the first bad scale met, or nothing.
std::optional<BadScale> pack_rows(Codec codec, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles,
                                  int64_t tile_stride);

// Writes the dequantised weights of row `row` of a packed matrix to out[0..cols), exact to one rounding.
void unpack_row(Codec codec, const uint8_t* tiles, int64_t row, int64_t cols, float* out);

}  // namespace freetoken
