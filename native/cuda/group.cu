// Pairs by expert, for expert_many: a counting sort in one block of up to 1024 threads, the same launch whatever the
// routing. Two reads of the pairs and one of the experts; the counters lie in shared memory.
#include "cuda/pairs.h"
#include "cuda/token_group.h"

namespace freetoken {

inline constexpr int kMostGroupedExperts = 4096;
inline constexpr int kMostWarps = 32;

// Sums over the threads below this one.
struct Before {
    int pairs, groups;
};

static inline Before sum_before(int pairs, int groups, int32_t (&warp_pairs)[kMostWarps],
                                int32_t (&warp_groups)[kMostWarps]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    Before upto = {pairs, groups};
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const int more_pairs = __shfl_up_sync(kAllLanes, upto.pairs, static_cast<unsigned>(distance));
        const int more_groups = __shfl_up_sync(kAllLanes, upto.groups, static_cast<unsigned>(distance));
        if (lane >= distance) upto = {upto.pairs + more_pairs, upto.groups + more_groups};
    }
    if (lane == kWarp - 1) {
        warp_pairs[warp] = upto.pairs;
        warp_groups[warp] = upto.groups;
    }
    __syncthreads();
    Before before = {upto.pairs - pairs, upto.groups - groups};
    for (int below = 0; below < warp; ++below)
        before = {before.pairs + warp_pairs[below], before.groups + warp_groups[below]};
    return before;
}

// order: the pairs whose target matches `which`, those of one expert side by side, in no order among themselves.
// starts: the number of groups, then for each group its first place in `order` and its number of pairs, at most
// kGroupTokens. `ids` has the expert of every pair, below `experts`.
extern "C" __global__ void group_pairs(const int32_t* target, const int32_t* ids, const int32_t* rows, int top_k,
                                       int which, int experts, int32_t* starts, int32_t* order) {
    SHARED(int32_t, place, kMostGroupedExperts);  // pairs of an expert, then where its next pair goes
    SHARED(int32_t, warp_pairs, kMostWarps);
    SHARED(int32_t, warp_groups, kMostWarps);
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    const int pairs = *rows * top_k;
    for (int e = thread; e < experts; e += threads) place[e] = 0;
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += threads)
        if (is_wanted(target[pair], which)) atomicAdd(&place[ids[pair]], 1);
    __syncthreads();

    const int share = (experts + threads - 1) / threads;
    const int first = min(thread * share, experts);
    const int last = min(first + share, experts);
    Before own = {0, 0};
    for (int e = first; e < last; ++e)
        own = {own.pairs + place[e], own.groups + (place[e] + kGroupTokens - 1) / kGroupTokens};
    Before before = sum_before(own.pairs, own.groups, warp_pairs, warp_groups);
    if (thread == threads - 1) starts[0] = before.groups + own.groups;
    for (int e = first; e < last; ++e) {
        const int count = place[e];
        for (int done = 0; done < count; done += kGroupTokens, ++before.groups) {
            starts[1 + 2 * before.groups] = before.pairs + done;
            starts[2 + 2 * before.groups] = min(count - done, kGroupTokens);
        }
        place[e] = before.pairs;
        before.pairs += count;
    }
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += threads)
        if (is_wanted(target[pair], which)) order[atomicAdd(&place[ids[pair]], 1)] = pair;
}

}  // namespace freetoken
