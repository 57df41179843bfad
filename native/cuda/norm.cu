// Norms over groups of values: y = x * (1 / sqrt(mean(x^2) + eps)) * w. A block takes one group of one row.
#include "cuda/device.h"

namespace freetoken {

inline constexpr int kNormTile = 2048;  // values that lie in shared memory at a time; a multiple of the 16 lanes

extern "C" __global__ void rms_norm(const float* x, int x_stride, const float* w, float eps, int group, const int* rows,
                                    float* y, int y_stride) {
    SHARED(float, tile, kNormTile);
    SHARED(float, lanes, kTileRows);
    const int row = static_cast<int>(blockIdx.y);
    if (row >= *rows) return;
    const size_t first = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(group);
    const float* from = x + static_cast<size_t>(row) * static_cast<size_t>(x_stride) + first;
    float* to = y + static_cast<size_t>(row) * static_cast<size_t>(y_stride) + first;
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);

    // Sixteen threads are the lanes of the contract's sum; the others only bring the values.
    float squares = 0.0f;
    for (int begin = 0; begin < group; begin += kNormTile) {
        const int count = min(kNormTile, group - begin);
        for (int i = thread; i < count; i += threads) tile[i] = from[begin + i];
        __syncthreads();
        if (thread < kTileRows)
            for (int i = thread; i < count; i += kTileRows) squares = fma(tile[i], tile[i], squares);
        __syncthreads();
    }
    if (thread < kTileRows) lanes[thread] = squares;
    __syncthreads();
    if (thread == 0) lanes[0] = 1.0f / __fsqrt_rn(sum_lanes(lanes) / static_cast<float>(group) + eps);
    __syncthreads();
    const float r = lanes[0];
    for (int i = thread; i < group; i += threads) to[i] = canonical(from[i] * r * w[i]);
}

}  // namespace freetoken
