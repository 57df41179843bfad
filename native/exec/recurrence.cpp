#include "exec/recurrence.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace freetoken {
namespace {

constexpr int64_t kMostValues = 64 * 1024;  // of a part: 256 KB

void zero(const StatePart& part, float* state) {
    for (int run = 0; run < part.runs; ++run)
        std::fill_n(state + part.offset + static_cast<size_t>(run) * part.stride, part.width, 0.0f);
}

void copy(const StatePart& part, const float* state, float* target) {
    for (int run = 0; run < part.runs; ++run) {
        const size_t begin = part.offset + static_cast<size_t>(run) * part.stride;
        std::memcpy(target + begin, state + begin, part.width * sizeof(float));
    }
}

}  // namespace

int64_t part_values(int64_t state_values, int threads) {
    return std::min(kMostValues, state_values / (2 * threads));
}

Recurrence::Recurrence(const StateStore& states, int state, std::vector<StatePart> parts, int64_t cost, Body body)
    : Operation(Clock::attention),
      states_(states),
      state_(state),
      parts_(std::move(parts)),
      cost_(cost),
      body_(std::move(body)) {}

Work Recurrence::prepare(int, const Step& step) {
    const size_t tasks = step.sequences.size() * parts_.size();
    return {{static_cast<uint32_t>(tasks)}, step.tokens * cost_};
}

void Recurrence::run(int, const Step& step, TaskRange tasks, uint8_t*) {
    for (uint32_t task = tasks.begin; task < tasks.end; ++task)
        run_part(step, step.sequences[task / parts_.size()], parts_[task % parts_.size()]);
}

void Recurrence::run_part(const Step& step, const Sequence& sequence, const StatePart& part) const {
    float* const state = states_.state(state_, sequence.state);
    if (sequence.position == 0) zero(part, state);
    const int end = sequence.begin + sequence.tokens;
    int token = sequence.begin;
    auto save = std::lower_bound(step.saves.begin(), step.saves.end(), token,
                                 [](const Save& s, int value) { return s.token < value; });
    for (; save != step.saves.end() && save->token < end; ++save) {
        if (save->token >= token) body_(part, token, save->token + 1 - token, step.positions[token], state);
        token = save->token + 1;
        if (save->slot != sequence.state) copy(part, state, states_.state(state_, save->slot));
    }
    if (token < end) body_(part, token, end - token, step.positions[token], state);
}

int state_of(const OpReader& op, int64_t values) {
    const StateStore& states = op.builder.states();
    const int state = op.integer("state");
    op.require(state < states.states(), "there is no state " + std::to_string(state));
    op.require(states.values(state) == values, "its state has " + std::to_string(states.values(state)) +
                                                   " values instead of " + std::to_string(values));
    op.require(op.builder.storage().states.insert(state).second, "its state is that of another operation");
    return state;
}

void keep_apart(const OpReader& op, const Buffer& written, const Buffer& read) {
    const bool apart = written.root != read.root || written.offset + written.width <= read.offset ||
                       read.offset + read.width <= written.offset;
    op.require(apart, "writes buffer " + written.name + " while it reads " + read.name + ", which lies there too");
}

GateKind gate_kind(const OpReader& op) {
    const std::string name = op.text("activation");
    if (name == "none") return GateKind::none;
    if (name == "sigmoid") return GateKind::sigmoid;
    if (name == "silu") return GateKind::silu;
    op.require(name == "softplus", "the activation " + name + " is unknown");
    return GateKind::softplus;
}

}  // namespace freetoken
