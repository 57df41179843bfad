// The router: which experts a token goes to, and with what weights. A warp takes one token; docs/numerics.md has the
// order of every sum and choice.
#include "cuda/device.h"

namespace freetoken {

inline constexpr int kRouteExperts = 4096;  // the most of a layer
inline constexpr int kRouteGroups = 256;
inline constexpr int kRouteChosen = 64;  // experts of a token

enum RouteScoring : int {
    kRouteSoftmax = 0,
    kRouteSigmoid = 1,
    kRouteSoftmaxTopK = 2,
    kRouteSqrtSoftplus = 3,
    kRouteSparseMixer = 4,
    kRouteSigmoidTopK = 5
};

// The functions below are called by all lanes of the warp, on shared memory, and give every lane the same answer.

static inline int own_lane() {
    return static_cast<int>(threadIdx.x);
}

// The largest number of x; NaN where x[0] is one.
static inline float largest(const float* x, int n) {
    float most = -__builtin_inff();
    for (int i = own_lane(); i < n; i += kWarp) most = x[i] > most ? x[i] : most;
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(kAllLanes, most, distance);
        most = other > most ? other : most;
    }
    return x[0] == x[0] ? most : x[0];
}

static inline float warp_lane_sum(const float* v, int n) {
    float sum = 0.0f;
    if (own_lane() < kTileRows)
        for (int i = own_lane(); i < n; i += kTileRows) sum = sum + v[i];
    for (int distance = kTileRows / 2; distance > 0; distance /= 2)
        sum = sum + __shfl_down_sync(kAllLanes, sum, static_cast<unsigned>(distance));
    return __shfl_sync(kAllLanes, sum, 0);
}

static inline void softmax(float* x, int n) {
    const float m = largest(x, n);
    __syncwarp();
    for (int i = own_lane(); i < n; i += kWarp) x[i] = exp(x[i] - m);
    __syncwarp();
    const float total = warp_lane_sum(x, n);
    __syncwarp();
    for (int i = own_lane(); i < n; i += kWarp) x[i] = x[i] / total;
    __syncwarp();
}

// Index of the largest value that is not taken, the lowest on a tie; a NaN where it comes before every number. One must
// be left.
static inline int pick(const float* values, const uint8_t* taken, int n) {
    int first = n;  // that is not taken
    int best = n;   // of the numbers
    float most = 0.0f;
    for (int i = own_lane(); i < n; i += kWarp) {
        if (taken[i] != 0) continue;
        first = min(first, i);
        if (values[i] == values[i] && (best == n || values[i] > most)) {
            best = i;
            most = values[i];
        }
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        first = min(first, __shfl_xor_sync(kAllLanes, first, distance));
        const int other = __shfl_xor_sync(kAllLanes, best, distance);
        const float value = __shfl_xor_sync(kAllLanes, most, distance);
        if (other == n) continue;
        if (best == n || value > most || (value == most && other < best)) {
            best = other;
            most = value;
        }
    }
    return values[first] == values[first] ? best : first;
}

// What a group is worth: the sum of its best choices, best first. By one lane; marks them as taken for the moment.
static inline float worth_of(const float* choice, uint8_t* taken, int size, int group_top) {
    float worth = 0.0f;
    for (int j = 0; j < group_top && j < size; ++j) {
        int best = -1;
        for (int i = 0; i < size; ++i)
            if (taken[i] == 0 && (best < 0 || choice[i] > choice[best])) best = i;
        taken[best] = 1;
        worth = worth + choice[best];
    }
    return worth;
}

// Marks as taken every expert outside the `top_groups` best groups.
static inline void close_groups(const float* choice, uint8_t* taken, int experts, int groups, int top_groups,
                                int group_top) {
    SHARED(float, worth, kRouteGroups);
    SHARED(uint8_t, open, kRouteGroups);
    const int size = experts / groups;
    for (int g = own_lane(); g < groups; g += kWarp) {
        worth[g] = worth_of(choice + g * size, taken + g * size, size, group_top);
        open[g] = 0;
    }
    __syncwarp();
    for (int j = 0; j < top_groups; ++j) {
        const int best = pick(worth, open, groups);
        __syncwarp();
        if (own_lane() == 0) open[best] = 1;
        __syncwarp();
    }
    for (int i = own_lane(); i < experts; i += kWarp) taken[i] = open[i / size] != 0 ? 0 : 1;
    __syncwarp();
}

// The share of the expert chosen[place] among those that are near it and were not chosen before it; `shares` is
// scratch.
static inline float sparse_share(const float* scores, const int* chosen, int place, int experts, float jitter,
                                 float* shares) {
    const float best = scores[chosen[place]];
    for (int i = own_lane(); i < experts; i += kWarp) {
        bool is_out = is_far(scores[i], best, jitter);
        for (int j = 0; j < place; ++j) is_out |= chosen[j] == i;
        shares[i] = is_out ? 0.0f : exp(scores[i] - best);
    }
    __syncwarp();
    const float total = warp_lane_sum(shares, experts);
    __syncwarp();
    return 1.0f / total;
}

// `bias` (null: none) counts for the choice alone; `expert_scale` (null: none) multiplies weights at last. `forced`
// (null: none) are ids to take instead of choosing; `table` (null: none) has those of every token id, as numbers. ids
// and weights lie dense, `top_k` a token.
extern "C" __global__ void route(const float* logits, int stride, const float* bias, int experts, int top_k,
                                 int scoring, int groups, int top_groups, int group_top, int normalize, float scale,
                                 float jitter, const float* expert_scale, const int* forced, const float* table,
                                 const int* token_ids, const int* rows, int* ids, float* weights) {
    SHARED(float, scores, kRouteExperts);
    SHARED(float, choice, kRouteExperts);
    SHARED(uint8_t, taken, kRouteExperts);
    SHARED(float, chosen, kRouteChosen);
    const int token = static_cast<int>(blockIdx.x);
    if (token >= *rows) return;
    const float* own = logits + static_cast<size_t>(token) * static_cast<size_t>(stride);
    const size_t first = static_cast<size_t>(token) * static_cast<size_t>(top_k);
    for (int i = own_lane(); i < experts; i += kWarp) {
        scores[i] = scoring == kRouteSigmoid        ? sigmoid(own[i])
                    : scoring == kRouteSqrtSoftplus ? __fsqrt_rn(softplus(own[i]))
                                                    : own[i];
        taken[i] = 0;
    }
    __syncwarp();
    if (scoring == kRouteSoftmax) softmax(scores, experts);
    for (int i = own_lane(); i < experts; i += kWarp) choice[i] = bias != nullptr ? scores[i] + bias[i] : scores[i];
    __syncwarp();
    if (groups > 1 && forced == nullptr) close_groups(choice, taken, experts, groups, top_groups, group_top);
    for (int j = 0; j < top_k; ++j) {
        int expert;
        if (forced != nullptr)
            expert = forced[first + static_cast<size_t>(j)];
        else if (table != nullptr)
            expert = static_cast<int>(
                table[static_cast<size_t>(token_ids[token]) * static_cast<size_t>(top_k) + static_cast<size_t>(j)]);
        else
            expert = pick(choice, taken, experts);
        __syncwarp();
        if (own_lane() == 0) {
            taken[expert] = 1;
            chosen[j] = scores[expert];
            ids[first + static_cast<size_t>(j)] = expert;
        }
        __syncwarp();
    }
    if (scoring == kRouteSparseMixer)
        for (int j = 0; j < top_k; ++j) {
            const float share = sparse_share(scores, ids + first, j, experts, jitter, choice);
            if (own_lane() == 0) chosen[j] = share;
            __syncwarp();
        }
    if (scoring == kRouteSoftmaxTopK) softmax(chosen, top_k);
    if (scoring == kRouteSigmoidTopK) {
        for (int j = own_lane(); j < top_k; j += kWarp) chosen[j] = sigmoid(chosen[j]);
        __syncwarp();
    }
    if (normalize != 0) {
        const float total = warp_lane_sum(chosen, top_k) + 1e-20f;
        __syncwarp();
        for (int j = own_lane(); j < top_k; j += kWarp) chosen[j] = chosen[j] / total;
        __syncwarp();
    }
    for (int j = own_lane(); j < top_k; j += kWarp) {
        const size_t place = first + static_cast<size_t>(j);
        const float own_scale = expert_scale != nullptr ? expert_scale[ids[place]] : 1.0f;
        weights[place] = canonical(chosen[j] * scale * own_scale);
    }
}

}  // namespace freetoken
