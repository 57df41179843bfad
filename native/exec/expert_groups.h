// Which tokens go to which expert: the routing of a step, turned around.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace freetoken {

// The expert of every (token, place) pair of a step, a place being that of an
// expert in the token's ranking.
struct PairIds {
    int tokens = 0;
    int top_k = 0;
    const int32_t* ids = nullptr;
    size_t stride = 0;     // between tokens
    bool partial = false;  // ids below zero are pairs that somebody else computes;
                           // otherwise they are errors
    int32_t returned = INT32_MAX;  // ids from here on are pairs whose output is
                                   // their input

    const int32_t* of_token(int token) const { return ids + static_cast<size_t>(token) * stride; }
    bool skips(int32_t id) const { return (partial && id < 0) || id >= returned; }
};

// Pairs are numbered by expert, within an expert by token. A pair's place in
// the list is token * top_k + place.
class ExpertGroups {
public:
    struct Group {
        int expert = 0;
        int first = 0;  // pair
        int count = 0;
    };

    // Experts are in [0, experts). Throws std::out_of_range.
    void gather(const PairIds& list, int experts) {
        top_k_ = list.top_k;
        starts_.assign(static_cast<size_t>(experts) + 1, 0);
        int pairs = 0;
        each(list, [&](int32_t id, int, size_t) {
            const auto expert = static_cast<size_t>(id);
            if (expert >= static_cast<size_t>(experts)) throw std::out_of_range("the router chose no expert");
            ++starts_[expert + 1];
            ++pairs;
        });
        groups_.clear();
        for (int expert = 0; expert < experts; ++expert) {
            const auto e = static_cast<size_t>(expert);
            if (starts_[e + 1] > 0) groups_.push_back({expert, starts_[e], starts_[e + 1]});
            starts_[e + 1] += starts_[e];
        }
        tokens_.resize(static_cast<size_t>(pairs));
        places_.resize(static_cast<size_t>(pairs));
        pairs_.assign(static_cast<size_t>(list.tokens) * static_cast<size_t>(list.top_k), -1);
        each(list, [&](int32_t id, int token, size_t place) {
            const int pair = starts_[static_cast<size_t>(id)]++;
            tokens_[static_cast<size_t>(pair)] = token;
            places_[static_cast<size_t>(pair)] = static_cast<int32_t>(place);
            pairs_[place] = pair;
        });
        std::stable_sort(groups_.begin(), groups_.end(),
                         [](const Group& a, const Group& b) { return a.count > b.count; });
    }

    // Groups with at least one pair, the largest first.
    const std::vector<Group>& groups() const { return groups_; }
    int pairs() const { return static_cast<int>(tokens_.size()); }
    int top_k() const { return top_k_; }
    // The tokens of a group's pairs.
    const int32_t* tokens(const Group& group) const { return tokens_.data() + group.first; }
    // Where a group's pairs are in the list.
    const int32_t* places(const Group& group) const { return places_.data() + group.first; }
    // The pairs of a token, in routing order; -1 for those left out.
    const int32_t* pairs_of(int token) const {
        return pairs_.data() + static_cast<size_t>(token) * static_cast<size_t>(top_k_);
    }

private:
    template <class Body>
    static void each(const PairIds& list, Body body) {
        size_t place = 0;
        for (int token = 0; token < list.tokens; ++token) {
            const int32_t* ids = list.of_token(token);
            for (int i = 0; i < list.top_k; ++i, ++place) {
                if (!list.skips(ids[i])) body(ids[i], token, place);
            }
        }
    }

    int top_k_ = 0;
    std::vector<int> starts_;
    std::vector<Group> groups_;
    std::vector<int32_t> tokens_;
    std::vector<int32_t> places_;
    std::vector<int32_t> pairs_;
};

}  // namespace freetoken
