// The weights by which streams are mixed, for the host and the device alike: scalar, since a token has few of them.
#pragma once

#include "core/numerics.h"

namespace freetoken {

inline constexpr int kMostStreams = 8;

struct StreamShape {
    int streams = 0;
    int iterations = 0;  // 0: the weights that collapse the streams are all that there are
    float eps = 0.0f;
};

// How many weights a token has: those that collapse `streams`, those that spread a part, and a matrix.
static inline int stream_weight_count(const StreamShape& shape) {
    return shape.iterations > 0 ? shape.streams * (2 + shape.streams) : shape.streams;
}

// Divides `count` values, `step` apart, by their sum plus eps.
static inline void divide_by_sum(float* values, int count, int step, float eps) {
    float sum = values[0];
    for (int i = 1; i < count; ++i) sum = sum + values[i * step];
    sum = sum + eps;
    for (int i = 0; i < count; ++i) values[i * step] = values[i * step] / sum;
}

// Softmax of `count` values, each plus eps.
static inline void softmax_above(float* values, int count, float eps) {
    float most = values[0];
    for (int i = 1; i < count; ++i) most = values[i] > most ? values[i] : most;
    for (int i = 0; i < count; ++i) values[i] = exp(values[i] - most);
    float sum = values[0];
    for (int i = 1; i < count; ++i) sum = sum + values[i];
    for (int i = 0; i < count; ++i) values[i] = values[i] / sum + eps;
}

// Weights of one token, in place of the projection of its streams: sigmoids plus eps; twice sigmoids; and a matrix
// [from][to] whose rows and columns are divided by their sums in turn (Sinkhorn and Knopp).
static inline void stream_weights(const StreamShape& shape, const float* base, const float* scale, float* weights) {
    const int n = shape.streams;
    for (int i = 0; i < n; ++i) weights[i] = canonical(sigmoid(weights[i] * scale[0] + base[i]) + shape.eps);
    if (shape.iterations == 0) return;
    for (int i = n; i < 2 * n; ++i) weights[i] = canonical(2.0f * sigmoid(weights[i] * scale[1] + base[i]));
    float* comb = weights + 2 * n;
    for (int i = 0; i < n * n; ++i) comb[i] = comb[i] * scale[2] + base[2 * n + i];
    for (int row = 0; row < n; ++row) softmax_above(comb + row * n, n, shape.eps);
    for (int column = 0; column < n; ++column) divide_by_sum(comb + column, n, n, shape.eps);
    for (int round = 1; round < shape.iterations; ++round) {
        for (int row = 0; row < n; ++row) divide_by_sum(comb + row * n, n, 1, shape.eps);
        for (int column = 0; column < n; ++column) divide_by_sum(comb + column, n, n, shape.eps);
    }
    for (int i = 0; i < n * n; ++i) comb[i] = canonical(comb[i]);
}

}  // namespace freetoken
