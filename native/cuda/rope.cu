// Rotary positions, in place: a thread turns one pair of values of one head. Cosines and sines are [tokens][half].
#include "cuda/device.h"

namespace freetoken {

// `pairs`: values 2i and 2i + 1 belong together, else i and i + half.
extern "C" __global__ void rope(float* x, int x_stride, int heads, int stride, int half, int pairs, const float* cosine,
                                const float* sine, const int* rows) {
    const int row = static_cast<int>(blockIdx.y);
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= *rows || i >= heads * half) return;
    const int pair = i % half;
    float* head = x + static_cast<size_t>(row) * static_cast<size_t>(x_stride) + i / half * stride;
    float* first = head + (pairs != 0 ? 2 * pair : pair);
    float* second = first + (pairs != 0 ? 1 : half);
    const size_t angle = static_cast<size_t>(row) * static_cast<size_t>(half) + static_cast<size_t>(pair);
    const float a = *first;
    const float b = *second;
    *first = canonical(a * cosine[angle] - b * sine[angle]);
    *second = canonical(b * cosine[angle] + a * sine[angle]);
}

}  // namespace freetoken
