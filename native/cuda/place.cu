// Where the experts of a layer lie when the host has decided it before the step: `plan` without a choice. A layer whose
// records do not fit the ring at once is treated in parts, a launch each.
#include "cuda/cache_state.h"
#include "cuda/device.h"

namespace freetoken {

inline constexpr int kPlaceWords = 2;  // of an expert: the part that it is in, and its target then

// places: two words an expert. target of the pairs whose expert is in `part` becomes what its words say, that of all
// others padding, or "returned" for ids from `experts` on; ids and target are [bucket][top_k], the first `rows` tokens
// are live. A thread a pair.
extern "C" __global__ void place_pairs(const int32_t* places, int32_t experts, int32_t part, const int32_t* ids,
                                       const int32_t* rows, int32_t bucket, int32_t top_k, int32_t* target) {
    const auto pair = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (pair >= bucket * top_k) return;
    int where = kTargetPadding;
    if (pair < *rows * top_k) {
        const int32_t* place = places + kPlaceWords * ids[pair];
        if (ids[pair] >= experts)
            where = kTargetReturned;
        else if (place[0] == part)
            where = place[1];
    }
    target[pair] = where;
}

}  // namespace freetoken
