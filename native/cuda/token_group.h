// Tokens that a block multiplies with two tiles: up to 32, so that a weight decoded once serves as many, and their
// activations are read once for 32 rows.
#pragma once

#include "cuda/device.h"

namespace freetoken {

inline constexpr int kGroupTokens = 32;
inline constexpr int kTilesOfBlock = 2;
inline constexpr int kThreadsOfTileBlock = 128;

}  // namespace freetoken
