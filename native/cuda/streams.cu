// Hyper-connections: the weights that mix the streams of a token, and what is made of the streams with them. Rows at
// and beyond *rows are left alone. Strides are in values.
#include "core/streams.h"
#include "cuda/device.h"

namespace freetoken {

// In place, a thread a row.
extern "C" __global__ void stream_weights_rows(float* mixes, int stride, const float* base, const float* scale,
                                               int streams, int iterations, float eps, const int* rows) {
    const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= *rows) return;
    float* own = mixes + static_cast<size_t>(row) * static_cast<size_t>(stride);
    stream_weights({streams, iterations, eps}, base, scale, own);
}

// y = sum over streams of their weights times them, by fma from zero: a thread a value.
extern "C" __global__ void collapse_rows(const float* x, int x_stride, const float* weights, int weight_stride,
                                         int streams, int width, const int* rows, float* y, int y_stride) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    if (row >= *rows || i >= width) return;
    const float* own = x + static_cast<size_t>(row) * static_cast<size_t>(x_stride);
    const float* weight = weights + static_cast<size_t>(row) * static_cast<size_t>(weight_stride);
    float sum = 0.0f;
    for (int s = 0; s < streams; ++s) sum = fma(weight[s], own[s * width + i], sum);
    y[static_cast<size_t>(row) * static_cast<size_t>(y_stride) + static_cast<size_t>(i)] = canonical(sum);
}

// Every stream becomes its share of the part and a mixture of all streams: a thread a value of each.
extern "C" __global__ void expand_rows(float* x, int x_stride, const float* part, int part_stride, const float* weights,
                                       int weight_stride, int streams, int width, const int* rows) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    if (row >= *rows || i >= width) return;
    float* own = x + static_cast<size_t>(row) * static_cast<size_t>(x_stride) + i;
    const float added = part[static_cast<size_t>(row) * static_cast<size_t>(part_stride) + static_cast<size_t>(i)];
    const float* post = weights + static_cast<size_t>(row) * static_cast<size_t>(weight_stride) + streams;
    const float* comb = post + streams;
    float before[kMostStreams];
    for (int s = 0; s < streams; ++s) before[s] = own[s * width];
    for (int s = 0; s < streams; ++s) {
        float sum = post[s] * added;
        for (int from = 0; from < streams; ++from) sum = fma(comb[from * streams + s], before[from], sum);
        own[s * width] = canonical(sum);
    }
}

}  // namespace freetoken
