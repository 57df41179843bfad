// Norms over groups of values. A block takes one group of one row.
#include "cuda/device.h"
#include "cuda/gate_kind.h"

namespace freetoken {

inline constexpr int kNormTile = 2048;  // values that lie in shared memory at a time; a multiple of the 16 lanes

// The lane sum over value(i), i < group, that `add(value, sum)` takes together, for every thread of the block.
template <class Value, class Add, class Tile, class Lanes>
static inline float sum_over(Value value, Add add, int group, Tile& tile, Lanes& lanes) {
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    // Sixteen threads are the lanes of the contract's sum; the others only bring the values.
    float sum = 0.0f;
    for (int begin = 0; begin < group; begin += kNormTile) {
        const int count = min(kNormTile, group - begin);
        for (int i = thread; i < count; i += threads) tile[i] = value(begin + i);
        __syncthreads();
        if (thread < kTileRows)
            for (int i = thread; i < count; i += kTileRows) sum = add(tile[i], sum);
        __syncthreads();
    }
    if (thread < kTileRows) lanes[thread] = sum;
    __syncthreads();
    if (thread == 0) lanes[0] = sum_lanes(lanes);
    __syncthreads();
    return lanes[0];
}

template <class Value, class Tile, class Lanes>
static inline float sum_of_squares(Value value, int group, Tile& tile, Lanes& lanes) {
    return sum_over(value, [](float x, float sum) { return fma(x, x, sum); }, group, tile, lanes);
}

// Where this block's group begins in a row, and its row in a buffer.
static inline size_t own_group(int group) {
    return static_cast<size_t>(blockIdx.x) * static_cast<size_t>(group);
}
static inline size_t own_row(int stride) {
    return static_cast<size_t>(blockIdx.y) * static_cast<size_t>(stride);
}

// y = x * (1 / sqrt(mean(x^2) + eps)) * w; w has `group` values, or is null.
extern "C" __global__ void rms_norm(const float* x, int x_stride, const float* w, float eps, int group, const int* rows,
                                    float* y, int y_stride) {
    SHARED(float, tile, kNormTile);
    SHARED(float, lanes, kTileRows);
    if (static_cast<int>(blockIdx.y) >= *rows) return;
    const float* from = x + own_row(x_stride) + own_group(group);
    float* to = y + own_row(y_stride) + own_group(group);
    const float squares = sum_of_squares([from](int i) { return from[i]; }, group, tile, lanes);
    const float r = 1.0f / __fsqrt_rn(squares / static_cast<float>(group) + eps);
    for (int i = static_cast<int>(threadIdx.x); i < group; i += static_cast<int>(blockDim.x))
        to[i] = canonical(w != nullptr ? from[i] * r * w[i] : from[i] * r);
}

// y = (x - mean) * (1 / sqrt(mean((x - mean)^2) + eps)) * w + bias; w has `group` values, as has bias unless null.
extern "C" __global__ void layer_norm(const float* x, int x_stride, const float* w, const float* bias, float eps,
                                      int group, const int* rows, float* y, int y_stride) {
    SHARED(float, tile, kNormTile);
    SHARED(float, lanes, kTileRows);
    if (static_cast<int>(blockIdx.y) >= *rows) return;
    const float* from = x + own_row(x_stride) + own_group(group);
    float* to = y + own_row(y_stride) + own_group(group);
    const auto value = [from](int i) { return from[i]; };
    const float count = static_cast<float>(group);
    const float mean = sum_over(value, [](float each, float sum) { return sum + each; }, group, tile, lanes) / count;
    const float squares = sum_of_squares([from, mean](int i) { return from[i] - mean; }, group, tile, lanes);
    const float r = 1.0f / __fsqrt_rn(squares / count + eps);
    for (int i = static_cast<int>(threadIdx.x); i < group; i += static_cast<int>(blockDim.x)) {
        const float normed = (from[i] - mean) * r * w[i];
        to[i] = canonical(bias != nullptr ? normed + bias[i] : normed);
    }
}

// y = x * (1 / sqrt(sum(x^2) + eps))
extern "C" __global__ void l2_norm(const float* x, int x_stride, float eps, int group, const int* rows, float* y,
                                   int y_stride) {
    SHARED(float, tile, kNormTile);
    SHARED(float, lanes, kTileRows);
    if (static_cast<int>(blockIdx.y) >= *rows) return;
    const float* from = x + own_row(x_stride) + own_group(group);
    float* to = y + own_row(y_stride) + own_group(group);
    const float squares = sum_of_squares([from](int i) { return from[i]; }, group, tile, lanes);
    const float r = 1.0f / __fsqrt_rn(squares + eps);
    for (int i = static_cast<int>(threadIdx.x); i < group; i += static_cast<int>(blockDim.x))
        to[i] = canonical(from[i] * r);
}

// rms_norm of x * act(gate) times w, or (gate_first 0) rms_norm of x times w times act(gate). Group j's weights begin
// at w[j * w_step].
extern "C" __global__ void gated_norm(const float* x, int x_stride, const float* gate, int gate_stride, const float* w,
                                      int w_step, float eps, int group, int gate_first, int kind, const int* rows,
                                      float* y, int y_stride) {
    SHARED(float, tile, kNormTile);
    SHARED(float, lanes, kTileRows);
    if (static_cast<int>(blockIdx.y) >= *rows) return;
    const float* from = x + own_row(x_stride) + own_group(group);
    const float* open = gate + own_row(gate_stride) + own_group(group);
    const float* weights = w + own_group(w_step);
    float* to = y + own_row(y_stride) + own_group(group);
    const auto value = [=](int i) { return gate_first != 0 ? gated(kind, from[i], open[i]) : from[i]; };
    const float squares = sum_of_squares(value, group, tile, lanes);
    const float r = 1.0f / __fsqrt_rn(squares / static_cast<float>(group) + eps);
    for (int i = static_cast<int>(threadIdx.x); i < group; i += static_cast<int>(blockDim.x)) {
        const float normed = value(i) * r * weights[i];
        to[i] = canonical(gate_first != 0 ? normed : normed * activated(kind, open[i]));
    }
}

}  // namespace freetoken
