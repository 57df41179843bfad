// Operations that treat every value of a row by itself: a thread a value, a row of the grid a row of the buffer. Rows
// at and beyond *rows are left alone. Strides are in values.
#include "core/gated_unit.h"
#include "cuda/device.h"
#include "cuda/gate_kind.h"

namespace freetoken {

static inline float* at(float* buffer, int stride, int row) {
    return buffer + static_cast<size_t>(row) * static_cast<size_t>(stride);
}
static inline const float* at(const float* buffer, int stride, int row) {
    return buffer + static_cast<size_t>(row) * static_cast<size_t>(stride);
}

static inline int own_row() {
    return static_cast<int>(blockIdx.y);
}
static inline int own_column() {
    return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

// A run of `width` values of every head, `in_stride` apart in x and `out_stride` in y.
extern "C" __global__ void head_copy(const float* x, int x_stride, int in_stride, int heads, int width, const int* rows,
                                     float* y, int y_stride, int out_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= heads * width) return;
    at(y, y_stride, own_row())[i / width * out_stride + i % width] =
        at(x, x_stride, own_row())[i / width * in_stride + i % width];
}

// The gated unit of a dense layer; `kind` is a number of GluKind. h may be gate or up.
extern "C" __global__ void glu_rows(const float* gate, int gate_stride, const float* up, int up_stride, int width,
                                    int kind, float alpha, float limit, const int* rows, float* h, int h_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float g = at(gate, gate_stride, own_row())[i];
    const float u = at(up, up_stride, own_row())[i];
    at(h, h_stride, own_row())[i] = glu_value({static_cast<GluKind>(kind), alpha, limit}, g, u);
}

// y = sigmoid(g) * x; a value of g is for `run` values of x.
extern "C" __global__ void sigmoid_gate(const float* x, int x_stride, const float* g, int g_stride, int run, int width,
                                        const int* rows, float* y, int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float open = sigmoid(at(g, g_stride, own_row())[i / run]);
    at(y, y_stride, own_row())[i] = canonical(open * at(x, x_stride, own_row())[i]);
}

// y = act(g) * x; a value of g is for `run` values of x.
extern "C" __global__ void gate_rows(const float* x, int x_stride, const float* g, int g_stride, int run, int width,
                                     int kind, const int* rows, float* y, int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float open = at(g, g_stride, own_row())[i / run];
    at(y, y_stride, own_row())[i] = gated(kind, at(x, x_stride, own_row())[i], open);
}

// y = max(x, 0)^2
extern "C" __global__ void relu2_rows(const float* x, int x_stride, int width, const int* rows, float* y,
                                      int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    at(y, y_stride, own_row())[i] = relu2(at(x, x_stride, own_row())[i]);
}

// x cut to +-limit, or (smooth) limit * tanh(x / limit).
extern "C" __global__ void bound_rows(const float* x, int x_stride, int width, float limit, int smooth, const int* rows,
                                      float* y, int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float value = at(x, x_stride, own_row())[i];
    const float below = limit < value ? limit : value;
    const float cut = below < -limit ? -limit : below;
    at(y, y_stride, own_row())[i] = canonical(smooth != 0 ? softcap(value, limit) : cut);
}

// The logarithm of what a recurrence keeps: g = -exp(a_log[h]) * softplus(x + bias), or where bound is not 0,
// bound * sigmoid(exp(a_log[h]) * (x + bias)); a head has `values` values.
extern "C" __global__ void decay_rows(const float* x, int x_stride, const float* a_log, int values, const float* bias,
                                      float bound, int width, const int* rows, float* g, int g_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float shifted = at(x, x_stride, own_row())[i] + bias[i];
    const float rate = -exp(a_log[i / values]);
    const float kept = bound != 0.0f ? bound * sigmoid(0.0f - rate * shifted) : rate * softplus(shifted);
    at(g, g_stride, own_row())[i] = canonical(kept);
}

// y = a + scale * b
extern "C" __global__ void add_rows(const float* a, int a_stride, const float* b, int b_stride, float scale, int width,
                                    const int* rows, float* y, int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    const float scaled = scale * at(b, b_stride, own_row())[i];
    at(y, y_stride, own_row())[i] = canonical(at(a, a_stride, own_row())[i] + scaled);
}

// x = factor[0] * x, or where factor is null, by * x
extern "C" __global__ void scale_rows(float* x, int x_stride, const float* factor, float by, int width,
                                      const int* rows) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    float* value = at(x, x_stride, own_row()) + i;
    *value = canonical((factor != nullptr ? *factor : by) * *value);
}

// Row r of y is row selected[r] of x.
extern "C" __global__ void select_rows(const float* x, int x_stride, const int* selected, int width, const int* rows,
                                       float* y, int y_stride) {
    const int i = own_column();
    if (own_row() >= *rows || i >= width) return;
    at(y, y_stride, own_row())[i] = at(x, x_stride, selected[own_row()])[i];
}

}  // namespace freetoken
