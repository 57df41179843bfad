// Adds the outputs of a token's experts in routing order, wherever they were computed: docs/numerics.md.
#include "cuda/cache_state.h"
#include "cuda/device.h"

namespace freetoken {

// y[t] = fma over places j ascending, from zero, of weights[t][j] (null: of ones) and the output of pair t * top_k + j,
// which lies in host_rows where the CPU computed it, in the token's row of x where that is returned, and in device_rows
// elsewhere; those of pairs have rows `row_stride` values apart. y of tokens that are not live stays as it is. Grid (any,
// bucket): the blocks of a token share its columns.
extern "C" __global__ void merge(const float* x, int32_t x_stride, const float* device_rows, const float* host_rows,
                                 int32_t row_stride,
                                 const int32_t* target, const float* weights, const int32_t* rows, int32_t top_k,
                                 int32_t hidden, float* y, int32_t y_stride) {
    const auto token = static_cast<int>(blockIdx.y);
    if (token >= *rows) return;
    const auto threads = static_cast<int>(gridDim.x * blockDim.x);
    for (auto column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); column < hidden; column += threads) {
        float total = 0.0f;
        for (int place = 0; place < top_k; ++place) {
            const int pair = token * top_k + place;
            const float* outputs = target[pair] == kTargetCpu ? host_rows : device_rows;
            const float* row = outputs + static_cast<uint64_t>(pair) * static_cast<uint32_t>(row_stride);
            if (target[pair] == kTargetReturned)
                row = x + static_cast<uint64_t>(token) * static_cast<uint32_t>(x_stride);
            total = fma(weights != nullptr ? weights[pair] : 1.0f, row[column], total);
        }
        y[static_cast<uint64_t>(token) * static_cast<uint32_t>(y_stride) + static_cast<uint32_t>(column)] =
            canonical(total);
    }
}

}  // namespace freetoken
