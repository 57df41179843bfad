// What experts do between and after their matrices, with vectors of the record in the slot: a thread a value, a row of
// the grid a pair. Threads of pairs that are not theirs end at once.
#include "core/gated_unit.h"
#include "cuda/pairs.h"

namespace freetoken {

inline constexpr uint64_t kNoVector = ~uint64_t{0};  // offset of a bias that an expert lacks

static inline float biased(float value, const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int target,
                           int i) {
    if (offset == kNoVector) return value;
    return value + reinterpret_cast<const float*>(in_slot(slots, slot_stride, offset, target))[i];
}

// h[pair][i] = glu(gate + gate bias, up + up bias), i < width. A row of gate_up has 16 values of gate and 16 of up in
// turn (interleaved), or gate, filled up to a multiple of 16, and then up. `kind` is a number of
// GluKind; of one without a gate the place of gate has no meaning.
extern "C" __global__ void expert_glu(const uint8_t* slots, uint64_t slot_stride, uint64_t gate_bias, uint64_t up_bias,
                                      int interleaved, int width, int kind, float alpha, float limit,
                                      const int32_t* target, int which, const int32_t* rows, int top_k,
                                      const float* gate_up, int gate_up_stride, float* h, int h_stride) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int pair = static_cast<int>(blockIdx.y);
    if (i >= width || pair >= *rows * top_k || !is_wanted(target[pair], which)) return;
    const float* row = gate_up + static_cast<int64_t>(pair) * gate_up_stride;
    const int at = interleaved != 0 ? i / kTileRows * 2 * kTileRows + i % kTileRows : i;
    const int to_up = interleaved != 0 ? kTileRows : (width + kTileRows - 1) / kTileRows * kTileRows;
    const float up = biased(row[at + to_up], slots, slot_stride, up_bias, target[pair], i);
    float* own = h + static_cast<int64_t>(pair) * h_stride + i;
    const Glu glu = {static_cast<GluKind>(kind), alpha, limit};
    const float gate = glu.is_gated() ? biased(row[at], slots, slot_stride, gate_bias, target[pair], i) : up;
    *own = glu_value(glu, gate, up);
}

// y[pair][i] += the vector at `offset`, i < n.
extern "C" __global__ void expert_bias(const uint8_t* slots, uint64_t slot_stride, uint64_t offset, int n,
                                       const int32_t* target, int which, const int32_t* rows, int top_k, float* y,
                                       int y_stride) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int pair = static_cast<int>(blockIdx.y);
    if (i >= n || pair >= *rows * top_k || !is_wanted(target[pair], which)) return;
    float* own = y + static_cast<int64_t>(pair) * y_stride + i;
    *own = canonical(biased(*own, slots, slot_stride, offset, target[pair], i));
}

}  // namespace freetoken
