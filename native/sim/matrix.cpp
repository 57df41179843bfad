#include "sim/matrix.h"

#include <cstring>

namespace freetoken::sim {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kDepth = 32;

using Row = int16_t[kDepth];  // bytes as words, whose products a processor sums by pairs

void widen(uint32_t word, int16_t* out) {
    int8_t bytes[4];
    std::memcpy(bytes, &word, sizeof bytes);
    for (int i = 0; i < 4; ++i) out[i] = bytes[i];
}

int32_t dot(const Row& a, const Row& b) {
    int32_t sum = 0;
    for (int k = 0; k < kDepth; ++k) sum += a[k] * b[k];
    return sum;
}

}  // namespace

void multiply_matrices(Words* lanes) {
    alignas(64) Row a[kRows];
    alignas(64) Row b[2][kColumns];
    for (int lane = 0; lane < static_cast<int>(kWarpLanes); ++lane) {
        const int g = lane / 4;
        const int k = lane % 4 * 4;
        const uint32_t* words = lanes[lane];
        for (int half = 0; half < 2; ++half) {
            widen(words[2 * half], a[g] + k + 16 * half);
            widen(words[2 * half + 1], a[g + 8] + k + 16 * half);
            widen(words[4 + half], b[0][g] + k + 16 * half);
            widen(words[6 + half], b[1][g] + k + 16 * half);
        }
    }
    for (int lane = 0; lane < static_cast<int>(kWarpLanes); ++lane) {
        const int g = lane / 4;
        const int t = lane % 4;
        for (int i = 0; i < 8; ++i)
            lanes[lane][i] = static_cast<uint32_t>(dot(a[g + i % 4 / 2 * 8], b[i / 4][2 * t + i % 2]));
    }
}

}  // namespace freetoken::sim
