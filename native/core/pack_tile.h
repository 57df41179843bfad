// The parts of the packer, private to it. Each writes one tile.
#pragma once

#include <cstdint>
#include <optional>

#include "core/pack.h"

namespace freetoken {

using TileRows = const uint8_t* [kTileRows];  // the raw rows of one tile; null for a row beyond the matrix

inline constexpr const char* kBadScale = "a scale that is no finite number";

// Whether an fp16 is neither Inf nor NaN.
static inline bool half_is_finite(uint32_t h) {
    return (h & 0x7C00u) != 0x7C00u;
}

// Integer codecs.
std::optional<BadValue> pack_integer_tile(Form form, const TileRows& rows, int64_t cols, uint8_t* tile);

// Plain values and scaled floats.
std::optional<BadValue> pack_plain_tile(Codec codec, const TileRows& rows, int64_t cols, uint8_t* tile);
std::optional<BadValue> pack_scaled_tile(Form form, const TileRows& rows, int64_t cols, uint8_t* tile);

}  // namespace freetoken
