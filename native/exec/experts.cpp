// The experts of one layer as an operation of the program: all pairs, then
// their merge.
#include <array>

#include "exec/builder.h"
#include "exec/expert_pairs.h"

namespace freetoken {
namespace {

constexpr int kMostChosen = 64;  // experts of one token
constexpr auto kOnes = [] {
    std::array<float, kMostChosen> ones{};
    for (float& one : ones) one = 1.0f;
    return ones;
}();

struct ExpertBuffers {
    const Buffer* x = nullptr;
    const Buffer* ids = nullptr;
    const Buffer* weights = nullptr;  // null: outputs are added as they are
    const Buffer* y = nullptr;
};

class Experts final : public Operation {
public:
    Experts(const Machine& machine, const ExpertBuffers& buffers, int experts, ExpertPairs::Parts parts,
            Storage& storage)
        : Operation(Clock::experts),
          machine_(machine),
          buffers_(buffers),
          experts_(experts),
          pairs_(machine, *buffers.x, std::move(parts), storage.workspace, storage.experts) {}

    int phases() const override { return ExpertPairs::kPhases + 1; }
    size_t scratch_bytes() const override { return pairs_.scratch_bytes(); }

    Work prepare(int phase, const Step& step) override {
        if (phase < ExpertPairs::kPhases) {
            const Buffer& ids = *buffers_.ids;
            return pairs_.prepare(phase, {step.tokens, ids.width, ids.int_row(0), ids.stride, false, experts_}, nullptr);
        }
        return {{static_cast<uint32_t>(step.tokens)},
                int64_t{buffers_.ids->width + 1} * buffers_.y->width * step.tokens};
    }

    void run(int phase, const Step&, TaskRange tasks, uint8_t* scratch) override {
        if (phase < ExpertPairs::kPhases) return pairs_.run(phase, tasks, scratch);
        for (uint32_t token = tasks.begin; token < tasks.end; ++token) merge(static_cast<int>(token));
    }

private:
    void merge(int token) {
        const int top_k = buffers_.ids->width;
        const float* rows[kMostChosen];
        for (int place = 0; place < top_k; ++place) rows[place] = pairs_.output(token, place);
        const float* weights = buffers_.weights == nullptr ? kOnes.data() : buffers_.weights->row(token);
        machine_.operations->merge(rows, weights, top_k, buffers_.y->width, buffers_.y->row(token));
    }

    const Machine machine_;
    const ExpertBuffers buffers_;
    const int experts_;  // ids from there on return their input
    ExpertPairs pairs_;
};

}  // namespace

std::unique_ptr<Operation> make_experts(const OpReader& op) {
    op.arity(2, 1, 0, 1);
    Builder& builder = op.builder;
    const ExpertBuffers buffers = {&op.read(0), &op.read(1), op.has_read(2) ? &op.read(2) : nullptr, &op.write(0)};
    const auto& [x, ids, weights, y] = buffers;
    op.width(*y, x->width);
    if (weights != nullptr) op.width(*weights, ids->width);
    const bool typed = ids->integers && (weights == nullptr || !weights->integers);
    op.require(typed, "reads integers and then numbers from the router");
    op.require(ids->width <= kMostChosen, "chooses more than " + std::to_string(kMostChosen) + " experts");
    for (const Buffer* buffer : {x, ids, weights, y})
        op.require(buffer == nullptr || !buffer->per_row, "its buffers do not all hold one row a token");
    ExpertPairs::Parts parts;
    parts.glu = op.glu();
    parts.records = builder.experts(op.integer("layer"));
    const int experts = op.integer("experts");
    op.require(experts <= static_cast<int>(parts.records.size()),
               "there are " + std::to_string(parts.records.size()) + " experts, not " + std::to_string(experts));
    for (const ExpertRecord& record : parts.records)
        op.require(record.layout->gated() == parts.glu.is_gated(), "has experts that do not fit its activation");
    for (const ExpertRecord& record : parts.records)
        op.require(record.layout->hidden == x->width, "the experts' width is " + std::to_string(record.layout->hidden) +
                                                          ", that of buffer " + x->name + " " +
                                                          std::to_string(x->width));
    for (const ActivationForm form : ExpertPairs::input_forms(parts.records)) {
        PackedInput input;
        input.rows = &builder.packed(*x, form, input.stale);
        parts.inputs.push_back(input);
    }
    return std::make_unique<Experts>(builder.machine(), buffers, experts, std::move(parts), builder.storage());
}

}  // namespace freetoken
