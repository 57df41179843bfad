// The router: which experts a token goes to, and with what weights.
#pragma once

#include <cmath>

#include "core/lanes.h"
#include "ops/ops.h"

namespace freetoken {
namespace {

float largest(const float* x, int n) {
    float m = x[0];
    for (int i = 1; i < n; ++i) m = x[i] > m ? x[i] : m;
    return m;
}

// p = softmax(x): maximum, exp, lane sum, division.
void softmax(const float* x, int n, float* p) {
    const float m = largest(x, n);
    Lanes total = broadcast(0.0f);
    for_lanes(n, [&](int i, int lanes) {
        store_up_to(p + i, exp(load_up_to(x + i, lanes) - broadcast(m)), lanes);
        total = total + load_up_to(p + i, lanes);
    });
    const Lanes divisor = broadcast(sum(total));
    for_lanes(n, [&](int i, int lanes) { store_up_to(p + i, load_up_to(p + i, lanes) / divisor, lanes); });
}

// Index of the largest value that is not taken, the lowest on a tie. A NaN is chosen only where no number came before
// it, so an index is found while one is left; -1 if none is.
int pick(const float* values, const bool* taken, int n) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
        if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

// Marks as taken every expert outside the best groups; a group's worth is the sum of its best choices, best first.
void close_groups(const RouteShape& shape, const float* choice, float* worth, bool* taken) {
    const int size = shape.experts / shape.groups;
    bool used[kMostExperts];
    for (int g = 0; g < shape.groups; ++g) {
        for (int i = 0; i < size; ++i) used[i] = false;
        worth[g] = 0.0f;
        for (int j = 0; j < shape.group_top && j < size; ++j) {
            const int best = pick(choice + g * size, used, size);
            used[best] = true;
            worth[g] = worth[g] + choice[g * size + best];
        }
    }
    bool open[kMostExperts] = {};
    for (int j = 0; j < shape.top_groups; ++j) open[pick(worth, open, shape.groups)] = true;
    for (int i = 0; i < shape.experts; ++i) taken[i] = !open[i / size];
}

bool chooses_by_logits(Scoring scoring) {
    return scoring == Scoring::softmax_topk || scoring == Scoring::sigmoid_topk || scoring == Scoring::sparse_mixer;
}

// Scores of all experts, which weights are made of; those of scorings that choose by logits are not final yet.
void score(const RouteShape& shape, const float* logits, float* scores) {
    const int n = shape.experts;
    if (shape.scoring == Scoring::softmax) softmax(logits, n, scores);
    for (int i = 0; i < n; ++i) {
        if (shape.scoring == Scoring::sigmoid) scores[i] = sigmoid(logits[i]);
        if (chooses_by_logits(shape.scoring)) scores[i] = logits[i];
        if (shape.scoring == Scoring::sqrt_softplus) scores[i] = std::sqrt(softplus(logits[i]));
    }
}

// The share of expert ids[place] among those that are near it and were not chosen before it.
float sparse_share(const RouteShape& shape, const float* scores, const int32_t* ids, int place) {
    const float best = scores[ids[place]];
    float lane[kLanes] = {};
    for (int i = 0; i < shape.experts; ++i) {
        bool is_out = is_far(scores[i], best, shape.jitter);
        for (int j = 0; j < place; ++j) is_out |= ids[j] == i;
        if (!is_out) lane[i % kLanes] = lane[i % kLanes] + exp(scores[i] - best);
    }
    return 1.0f / sum_lanes(lane);
}

// Weights of the chosen experts from all scores.
void weigh_chosen(const RouteShape& shape, const float* scores, const int32_t* ids, float* weights) {
    for (int j = 0; j < shape.top_k; ++j) weights[j] = scores[ids[j]];
    if (shape.scoring == Scoring::sparse_mixer)
        for (int j = 0; j < shape.top_k; ++j) weights[j] = sparse_share(shape, scores, ids, j);
    if (shape.scoring == Scoring::softmax_topk) softmax(weights, shape.top_k, weights);
    if (shape.scoring == Scoring::sigmoid_topk)
        for (int j = 0; j < shape.top_k; ++j) weights[j] = sigmoid(weights[j]);
    if (shape.normalize) {
        const float total = lane_sum(weights, static_cast<size_t>(shape.top_k)) + 1e-20f;
        for (int j = 0; j < shape.top_k; ++j) weights[j] = weights[j] / total;
    }
    for (int j = 0; j < shape.top_k; ++j) {
        const float own = shape.expert_scale != nullptr ? shape.expert_scale[ids[j]] : 1.0f;
        weights[j] = canonical(weights[j] * shape.scale * own);
    }
}

void route(const RouteShape& shape, const float* logits, float* scratch, int32_t* ids, float* weights) {
    const int n = shape.experts;
    float* scores = scratch;
    float* choice = scratch + n;
    score(shape, logits, scores);
    for (int i = 0; i < n; ++i) choice[i] = shape.bias != nullptr ? scores[i] + shape.bias[i] : scores[i];
    bool taken[kMostExperts] = {};
    if (shape.groups > 1) close_groups(shape, choice, scratch + 2 * n, taken);
    for (int j = 0; j < shape.top_k; ++j) {
        ids[j] = pick(choice, taken, n);
        taken[ids[j]] = true;
    }
    weigh_chosen(shape, scores, ids, weights);
}

void weigh(const RouteShape& shape, const float* logits, float* scratch, const int32_t* ids, float* weights) {
    score(shape, logits, scratch);
    weigh_chosen(shape, scratch, ids, weights);
}

}  // namespace
}  // namespace freetoken
