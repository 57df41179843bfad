// Routing from outside and to it: what the routers of a step chose is kept, or replaced by what is given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/program.h"

namespace freetoken {

// The ids of all MoE layers, [layers][tokens][top_k]. All layers must have one top_k for either use.
class Routing {
public:
    // Adds the next MoE layer; its number.
    int add_layer(int experts, int top_k) {
        experts_.push_back(experts);
        top_k_.push_back(top_k);
        return static_cast<int>(experts_.size()) - 1;
    }

    int layers() const { return static_cast<int>(experts_.size()); }
    int top_k() const { return top_k_.empty() ? 0 : top_k_.front(); }
    // Tokens of the last step, if it was recorded; -1 otherwise.
    int recorded_tokens() const { return recorded_tokens_; }
    std::span<const int32_t> recorded(int layer) const {
        const auto row = static_cast<size_t>(top_k());
        return {recorded_.data() + static_cast<size_t>(layer) * stride_, static_cast<size_t>(recorded_tokens_) * row};
    }

    // Keeps what steps of up to `max_tokens` choose from now on. Throws ProgramError, std::bad_alloc.
    void record(bool on, int max_tokens) {
        recorded_tokens_ = -1;
        recording_ = false;
        if (!on) return;
        check_shape();
        stride_ = static_cast<size_t>(max_tokens) * static_cast<size_t>(top_k());
        recorded_.resize(static_cast<size_t>(layers()) * stride_);
        recording_ = true;
    }

    // Has steps of `tokens` run these experts, [layers][tokens][top_k]. Throws ProgramError and changes nothing.
    void force(std::span<const int32_t> ids, int tokens) {
        check_shape();
        check_ids(ids, tokens);
        forced_.assign(ids.begin(), ids.end());
        forced_tokens_ = tokens;
    }
    void release() { forced_tokens_ = -1; }

    // Called once a step, with its tokens. Throws std::invalid_argument for another number than is forced.
    void begin(int tokens) {
        if (forced_tokens_ >= 0 && forced_tokens_ != tokens)
            throw std::invalid_argument("a step of " + std::to_string(tokens) + " tokens under a routing of " +
                                        std::to_string(forced_tokens_));
        recorded_tokens_ = recording_ ? tokens : -1;
    }
    // The experts that a token must run; null: those that its router chooses.
    const int32_t* forced(int layer, int token) const {
        if (forced_tokens_ < 0) return nullptr;
        return forced_.data() + static_cast<size_t>(layer * forced_tokens_ + token) * static_cast<size_t>(top_k());
    }
    void keep(int layer, int token, const int32_t* ids) {
        if (!recording_) return;
        const auto row = static_cast<size_t>(top_k());
        std::copy_n(ids, row,
                    recorded_.data() + static_cast<size_t>(layer) * stride_ + static_cast<size_t>(token) * row);
    }

private:
    void check_shape() const {
        if (layers() == 0) throw ProgramError("a model without experts has no routing");
        if (std::any_of(top_k_.begin(), top_k_.end(), [&](int k) { return k != top_k(); }))
            throw ProgramError("the layers of this model use different numbers of experts");
    }

    void check_ids(std::span<const int32_t> ids, int tokens) const {
        const auto row = static_cast<size_t>(top_k());
        if (ids.size() != static_cast<size_t>(layers()) * static_cast<size_t>(tokens) * row)
            throw ProgramError("a routing must have " + std::to_string(layers()) + " layers of " +
                               std::to_string(top_k()) + " experts a token");
        for (size_t first = 0; first < ids.size(); first += row) {
            const auto layer = first / (static_cast<size_t>(tokens) * row);
            const auto chosen = ids.subspan(first, row);
            for (size_t j = 0; j < row; ++j) {
                if (chosen[j] < 0 || chosen[j] >= experts_[layer])
                    throw ProgramError("layer " + std::to_string(layer) + " has no expert " +
                                       std::to_string(chosen[j]));
                if (std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(j), chosen[j]) !=
                    chosen.begin() + static_cast<std::ptrdiff_t>(j))
                    throw ProgramError("a token of layer " + std::to_string(layer) + " has expert " +
                                       std::to_string(chosen[j]) + " twice");
            }
        }
    }

    std::vector<int> experts_;  // of each layer
    std::vector<int> top_k_;
    bool recording_ = false;
    size_t stride_ = 0;  // ids between layers of what is recorded
    std::vector<int32_t> recorded_;
    int recorded_tokens_ = -1;
    std::vector<int32_t> forced_;
    int forced_tokens_ = -1;
};

}  // namespace freetoken
