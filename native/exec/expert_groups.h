// Which tokens go to which expert: the routing of a step, turned around.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace freetoken {

// A (token, place) pair is the expert that a token chose at a place of its ranking. Pairs are numbered by expert,
// within an expert by token.
class ExpertGroups {
public:
    struct Group {
        int expert = 0;
        int first = 0;  // pair
        int count = 0;
    };

    // `ids(token)` gives the `top_k` experts of a token, each in [0, experts).
    template <class Ids>
    void gather(int tokens, int top_k, int experts, Ids ids) {
        starts_.assign(static_cast<size_t>(experts) + 1, 0);
        for (int token = 0; token < tokens; ++token) {
            const int32_t* chosen = ids(token);
            for (int place = 0; place < top_k; ++place) {
                const auto expert = static_cast<size_t>(chosen[place]);
                if (expert >= static_cast<size_t>(experts)) throw std::out_of_range("the router chose no expert");
                ++starts_[expert + 1];
            }
        }
        groups_.clear();
        for (int expert = 0; expert < experts; ++expert) {
            const auto e = static_cast<size_t>(expert);
            if (starts_[e + 1] > 0) groups_.push_back({expert, starts_[e], starts_[e + 1]});
            starts_[e + 1] += starts_[e];
        }
        const size_t pairs = static_cast<size_t>(tokens) * static_cast<size_t>(top_k);
        tokens_.resize(pairs);
        pairs_.resize(pairs);
        size_t at = 0;
        for (int token = 0; token < tokens; ++token) {
            const int32_t* chosen = ids(token);
            for (int place = 0; place < top_k; ++place, ++at) {
                const int pair = starts_[static_cast<size_t>(chosen[place])]++;
                tokens_[static_cast<size_t>(pair)] = token;
                pairs_[at] = pair;
            }
        }
        std::stable_sort(groups_.begin(), groups_.end(),
                         [](const Group& a, const Group& b) { return a.count > b.count; });
    }

    // Groups with at least one pair, the largest first.
    const std::vector<Group>& groups() const { return groups_; }
    // The tokens of a group's pairs.
    const int32_t* tokens(const Group& group) const { return tokens_.data() + group.first; }
    // The pairs of a token, in routing order.
    const int32_t* pairs_of(int token, int top_k) const {
        return pairs_.data() + static_cast<size_t>(token) * static_cast<size_t>(top_k);
    }

private:
    std::vector<int> starts_;
    std::vector<Group> groups_;
    std::vector<int32_t> tokens_;
    std::vector<int32_t> pairs_;
};

}  // namespace freetoken
