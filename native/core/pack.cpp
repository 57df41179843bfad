#include "core/pack.h"

#include "core/pack_tile.h"

namespace freetoken {
namespace {

std::optional<BadValue> pack_tile(Form form, const TileRows& rows, int64_t cols, uint8_t* tile) {
    const Codec codec = form_info(form).codec;
    switch (codec_info(codec).kind) {
        case CodecKind::integer:
            return pack_integer_tile(form, rows, cols, tile);
        case CodecKind::scaled:
            return pack_scaled_tile(form, rows, cols, tile);
        case CodecKind::plain:
            break;
    }
    return pack_plain_tile(codec, rows, cols, tile);
}

}  // namespace

std::optional<BadValue> pack_rows(Form form, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles,
                                  int64_t tile_stride) {
    const int64_t row_bytes = raw_row_bytes(form, cols);
    for (int64_t first = 0; first < rows; first += kTileRows, tiles += tile_stride) {
        TileRows tile_rows;
        for (int r = 0; r < kTileRows; ++r) tile_rows[r] = first + r < rows ? raw + (first + r) * row_bytes : nullptr;
        if (auto bad = pack_tile(form, tile_rows, cols, tiles)) {
            bad->row += first;
            return bad;
        }
    }
    return std::nullopt;
}

}  // namespace freetoken
