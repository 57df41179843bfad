// Raw rows of a checkpoint to packed tiles, and packed tiles back to f32.
#pragma once

#include <cstdint>
#include <optional>

#include "core/codec.h"

namespace freetoken {

// What a raw row holds that a packed matrix may not; the caller makes a sentence of it.
struct BadValue {
    int64_t row;       // counted from the first row passed in
    int64_t block;     // raw block within the row; -1: the row as a whole
    const char* what;  // "a scale that is no finite number"
};

// Packs `rows` raw rows of `cols` weights into tiles of the form's codec; the first row is the first row of a tile.
//
// Rows lie raw_row_bytes(form, cols) apart. Tile i is written at tiles + i * tile_stride; tile_stride is
// tile_bytes(codec, cols), or a multiple of it where tiles of several matrices take turns. The last tile is filled up
// with zero weights. Every byte of each tile is written. Returns the first bad value met, or nothing.
std::optional<BadValue> pack_rows(Form form, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles,
                                  int64_t tile_stride);

// Writes the dequantised weights of row `row` of a packed matrix to out[0..cols), as docs/numerics.md says.
void unpack_row(Codec codec, const uint8_t* tiles, int64_t row, int64_t cols, float* out);

}  // namespace freetoken
