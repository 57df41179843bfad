// Rows of f32 as products read them: rounded to blocks of 32 as the contract says, for integer codecs, or only put into
// the order of a matrix's columns. `order` has a column of x for every column of the matrix, or is null.
//
// Both are bound by what they read and write. In pack_q16 eight threads share a block, four values each, so reads and
// writes of a warp are whole lines, and the largest magnitude and the sums take three shuffles each.
#include "cuda/device.h"
#include "kernels/activations.h"

namespace freetoken {

inline constexpr int kThreadsOfBlock = 8;
inline constexpr int kValuesOfThread = kBlock / kThreadsOfBlock;

// Row r of x, r < *rows * per_row, at x + r * x_stride values; its blocks at out + r * out_bytes.
extern "C" __global__ void pack_q16(const float* x, int x_stride, const int32_t* order, const int32_t* rows,
                                    int per_row, int cols, uint8_t* out, int out_bytes) {
    const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    if (row >= *rows * per_row) return;
    const int block = thread / kThreadsOfBlock;
    const int part = thread % kThreadsOfBlock;
    const bool live = block * kBlock < cols;  // whoever is not still takes part in the shuffles

    const float* from = x + static_cast<int64_t>(row) * x_stride;
    float values[kValuesOfThread] = {};
    uint32_t largest_bits = 0;
    for (int i = 0; i < kValuesOfThread; ++i) {
        const int column = kBlock * block + kValuesOfThread * part + i;
        if (live) values[i] = from[order != nullptr ? order[column] : column];
        largest_bits = max(largest_bits, bits_of(values[i]) & 0x7FFFFFFFu);
    }
    for (int distance = 1; distance < kThreadsOfBlock; distance *= 2)
        largest_bits = max(largest_bits, __shfl_xor_sync(kAllLanes, largest_bits, distance));

    const float largest = float_of(largest_bits);
    const bool finite = is_finite(largest);
    const bool zero = !finite || largest < kTinyBlock;
    const float inverse = zero ? 0.0f : static_cast<float>(kQuantMax) / largest;
    uint32_t hi = 0;
    uint32_t lo = 0;
    int sum = 0;
    for (int i = 0; i < kValuesOfThread; ++i) {
        const float rounded = values[i] * inverse + kRoundMagic;
        const int q = zero ? 0 : static_cast<int>(bits_of(rounded) - kRoundMagicBits);
        const int low = static_cast<int8_t>(q);
        sum += q;
        lo |= static_cast<uint32_t>(low & 255) << 8 * i;
        hi |= static_cast<uint32_t>(((q - low) >> 8) & 255) << 8 * i;
    }
    for (int distance = 1; distance < kThreadsOfBlock / 2; distance *= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
    const int other_half = __shfl_xor_sync(kAllLanes, sum, kThreadsOfBlock / 2);
    if (!live) return;

    auto* packed = reinterpret_cast<QuantBlock*>(out + static_cast<int64_t>(row) * out_bytes) + block;
    reinterpret_cast<uint32_t*>(packed->hi)[part] = hi;
    reinterpret_cast<uint32_t*>(packed->lo)[part] = lo;
    if (part == 0) {
        set_sums(*packed, sum, other_half);
        packed->scale = zero ? (finite ? 0.0f : float_of(kCanonicalNan)) : largest / static_cast<float>(kQuantMax);
    }
}

// Row r as f32, at out + r * out_bytes.
extern "C" __global__ void gather_f32(const float* x, int x_stride, const int32_t* order, const int32_t* rows,
                                      int per_row, int cols, uint8_t* out, int out_bytes) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    if (row >= *rows * per_row || column >= cols) return;
    const float* from = x + static_cast<int64_t>(row) * x_stride;
    reinterpret_cast<float*>(out + static_cast<int64_t>(row) * out_bytes)[column] =
        from[order != nullptr ? order[column] : column];
}

}  // namespace freetoken
