// The experts of one layer: tokens grouped by expert, whole experts by single threads, the rest by all together.
#include <algorithm>

#include "exec/builder.h"
#include "exec/expert_compute.h"
#include "exec/expert_groups.h"

namespace freetoken {
namespace {

constexpr int64_t kPieceBytes = 64 * 1024;  // of weights, where an expert is shared out
constexpr int kMostChosen = 64;             // experts of one token

// An expert that all threads work on, and where its rows lie.
struct SharedExpert {
    ExpertGroups::Group group;
    int first_row = 0;
};

// A run of tiles of a shared expert.
struct Piece {
    size_t expert = 0;
    int begin = 0;
    int end = 0;
};

void cut(std::vector<Piece>& into, size_t expert, int tiles, int64_t tile_bytes) {
    const auto tiles_a_piece = static_cast<int>(std::max<int64_t>(1, kPieceBytes / tile_bytes));
    const int pieces = (tiles + tiles_a_piece - 1) / tiles_a_piece;
    for (int i = 0; i < pieces; ++i) into.push_back({expert, tiles * i / pieces, tiles * (i + 1) / pieces});
}

// The input as records of one form read it.
struct Input {
    const PackedRows* rows = nullptr;
    bool stale = false;
};

class Experts final : public Operation {
public:
    struct Parts {
        const Buffer* x = nullptr;
        const Buffer* ids = nullptr;
        const Buffer* weights = nullptr;
        const Buffer* y = nullptr;
        Glu glu;
        std::vector<ExpertRecord> records;
        std::vector<Input> inputs;
    };

    Experts(const Machine& machine, Parts parts, Storage& storage)
        : Operation(Clock::experts),
          machine_(machine),
          parts_(std::move(parts)),
          workspace_(storage.workspace),
          counters_(storage.experts) {
        for (const ExpertRecord& record : parts_.records) {
            const ExpertScratch scratch(machine, *record.layout);
            scratch_bytes_ = std::max(scratch_bytes_, scratch.bytes());
            hidden_stride_ = std::max(hidden_stride_, scratch.packed_stride());
            gate_up_stride_ = std::max(gate_up_stride_, gate_up_stride(*record.layout));
            width_ = std::max(width_, record.layout->width);
            ordered_ = ordered_ || record.layout->ordered();
            input_stride_ = std::max(input_stride_, scratch.input_stride());
        }
    }

    // Pack the input, of the shared experts alone where experts have orders; whole experts, and gate and up of the
    // shared ones; activation and down of these; merge.
    int phases() const override { return 5; }
    size_t scratch_bytes() const override { return scratch_bytes_; }

    Work prepare(int phase, const Step& step) override {
        const auto tokens = static_cast<uint32_t>(step.tokens);
        switch (phase) {
            case 0: {
                if (ordered_) {
                    plan(step);
                    return {{static_cast<uint32_t>(shared_rows_)}, int64_t{4} * parts_.x->width * shared_rows_};
                }
                const auto& inputs = parts_.inputs;
                const bool stale = std::any_of(inputs.begin(), inputs.end(), [](const Input& i) { return i.stale; });
                return {{stale ? tokens : 0, 4}, int64_t{2} * parts_.x->width * step.tokens};
            }
            case 1:
                if (!ordered_) plan(step);
                return {{whole_ + static_cast<uint32_t>(gate_up_.size()), 1, true}, kNeverAlone};
            case 2:
                return {{static_cast<uint32_t>(shared_rows_)}, int64_t{6} * width_ * shared_rows_};
            case 3:
                return {{static_cast<uint32_t>(down_.size())}, kNeverAlone};
            default:
                return {{tokens}, int64_t{top_k() + 1} * parts_.y->width * step.tokens};
        }
    }

    void run(int phase, const Step&, TaskRange tasks, uint8_t* scratch) override {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
            if (phase == 0 && ordered_)
                pack_shared(static_cast<int>(task), scratch);
            else if (phase == 0)
                pack(task);
            else if (phase == 1 && task < whole_)
                run_whole(groups_.groups()[task], scratch);
            else if (phase == 1)
                run_gate_up(gate_up_[task - whole_]);
            else if (phase == 2)
                run_activation(static_cast<int>(task), scratch);
            else if (phase == 3)
                run_down(down_[task]);
            else
                merge(static_cast<int>(task));
        }
    }

private:
    int top_k() const { return parts_.ids->width; }
    size_t out_stride() const { return (static_cast<size_t>(parts_.y->width) + 15) / 16 * 16; }
    float* out(int pair) const { return workspace_.expert_outputs.floats() + static_cast<size_t>(pair) * out_stride(); }
    float* gate_up_row(int row) const {
        return workspace_.expert_gate_up.floats() + static_cast<size_t>(row) * gate_up_stride_;
    }
    uint8_t* hidden_row(int row) const {
        return workspace_.expert_hidden.data() + static_cast<size_t>(row) * hidden_stride_;
    }
    const ExpertRecord& record(const ExpertGroups::Group& group) const {
        return parts_.records[static_cast<size_t>(group.expert)];
    }
    // Of a row of the shared experts, in the order of gate, and `stride` behind it in that of up.
    uint8_t* input_row(int row) const {
        return workspace_.expert_inputs.data() + 2 * static_cast<size_t>(row) * input_stride_;
    }
    size_t shared_expert_of(int row) const {
        size_t expert = 0;
        while (expert + 1 < shared_.size() && shared_[expert + 1].first_row <= row) ++expert;
        return expert;
    }
    Activations input(const ExpertGroups::Group& group) const {
        const ActivationForm form = record(group).layout->input_form();
        const PackedRows* rows = parts_.inputs[0].rows;
        for (const Input& candidate : parts_.inputs) {
            if (candidate.rows->form == form) rows = candidate.rows;
        }
        return {rows->row(0), rows->stride, groups_.tokens(group)};
    }

    // Groups the tokens by expert. The smallest experts, fewer than there are threads, are cut into pieces, which fill
    // up the threads that are done with whole ones.
    void plan(const Step& step) {
        groups_.gather(step.tokens, top_k(), static_cast<int>(parts_.records.size()),
                       [this](int token) { return parts_.ids->int_row(token); });
        const auto& groups = groups_.groups();
        whole_ = static_cast<uint32_t>(groups.size() - groups.size() % static_cast<size_t>(machine_.threads));
        shared_.clear();
        gate_up_.clear();
        down_.clear();
        shared_rows_ = 0;
        for (size_t i = 0; i < groups.size(); ++i) {
            const RecordLayout& layout = *record(groups[i]).layout;
            counters_.bytes += static_cast<int64_t>(layout.bytes);
            if (i < whole_) continue;
            cut(gate_up_, shared_.size(), gate_up_tasks(layout), gate_up_task_bytes(layout));
            cut(down_, shared_.size(), static_cast<int>(tile_count(layout.hidden)),
                tile_bytes(layout.down.codec, layout.width));
            shared_.push_back({groups[i], shared_rows_});
            shared_rows_ += groups[i].count;
        }
        counters_.experts += static_cast<int64_t>(groups.size());
        const auto rows = static_cast<size_t>(shared_rows_);
        workspace_.expert_gate_up.reserve(rows * gate_up_stride_ * sizeof(float));
        workspace_.expert_hidden.reserve(rows * hidden_stride_);
        if (ordered_) workspace_.expert_inputs.reserve(2 * rows * input_stride_);
        const auto pairs = static_cast<size_t>(step.tokens) * static_cast<size_t>(top_k());
        workspace_.expert_outputs.reserve(pairs * out_stride() * sizeof(float));
    }

    void pack(uint32_t row) {
        for (const Input& input : parts_.inputs) {
            if (input.stale) input.rows->pack(*machine_.kernels, parts_.x->row(static_cast<int>(row)), row);
        }
    }

    void pack_shared(int row, uint8_t* scratch) {
        const SharedExpert& shared = shared_[shared_expert_of(row)];
        const ExpertRecord& owner = record(shared.group);
        const int32_t* token = groups_.tokens(shared.group) + (row - shared.first_row);
        uint8_t* gate = input_row(row);
        pack_in_order(machine_, owner, owner.layout->gate_order, *parts_.x, token, 1, scratch, gate, input_stride_);
        pack_in_order(machine_, owner, owner.layout->up_order, *parts_.x, token, 1, scratch, gate + input_stride_,
                      input_stride_);
    }

    GateUpInput shared_input(const SharedExpert& shared) const {
        if (!ordered_) return {input(shared.group), input(shared.group)};
        const uint8_t* gate = input_row(shared.first_row);
        return {{gate, 2 * input_stride_, nullptr}, {gate + input_stride_, 2 * input_stride_, nullptr}};
    }

    void run_whole(const ExpertGroups::Group& group, uint8_t* scratch) {
        const Activations packed = ordered_ ? Activations{} : input(group);
        run_expert(machine_, parts_.glu, record(group), {packed, parts_.x, groups_.tokens(group)}, group.count, scratch,
                   out(group.first), out_stride());
    }

    void run_gate_up(const Piece& piece) {
        const SharedExpert& shared = shared_[piece.expert];
        multiply_gate_up(machine_, record(shared.group), piece.begin, piece.end, shared_input(shared),
                         shared.group.count, gate_up_row(shared.first_row), gate_up_stride_);
    }

    void run_activation(int row, uint8_t* scratch) {
        const ExpertRecord& owner = record(shared_[shared_expert_of(row)].group);
        float* h = ExpertScratch(machine_, *owner.layout).hidden(scratch);
        activate(machine_, parts_.glu, owner, gate_up_row(row), h);
        machine_.kernels->pack_activations(activation_form(owner.layout->down.codec), h, owner.layout->width,
                                           hidden_row(row));
    }

    void run_down(const Piece& piece) {
        const SharedExpert& shared = shared_[piece.expert];
        const Activations h = {hidden_row(shared.first_row), hidden_stride_, nullptr};
        multiply_down(machine_, record(shared.group), piece.begin, piece.end, h, shared.group.count,
                      out(shared.group.first), out_stride());
    }

    void merge(int token) {
        const int32_t* pairs = groups_.pairs_of(token, top_k());
        const float* rows[kMostChosen];
        for (int place = 0; place < top_k(); ++place) rows[place] = out(pairs[place]);
        machine_.operations->merge(rows, parts_.weights->row(token), top_k(), parts_.y->width, parts_.y->row(token));
    }

    const Machine machine_;
    const Parts parts_;
    Workspace& workspace_;
    ExpertCounters& counters_;
    size_t scratch_bytes_ = 0;
    size_t hidden_stride_ = 0;   // bytes
    size_t gate_up_stride_ = 0;  // values
    int width_ = 0;
    bool ordered_ = false;     // experts read their input in orders of their own
    size_t input_stride_ = 0;  // bytes

    ExpertGroups groups_;
    uint32_t whole_ = 0;  // groups that single threads run
    std::vector<SharedExpert> shared_;
    std::vector<Piece> gate_up_;
    std::vector<Piece> down_;
    int shared_rows_ = 0;
};

}  // namespace

std::unique_ptr<Operation> make_experts(const OpReader& op) {
    op.arity(3, 1, 0);
    Builder& builder = op.builder;
    Experts::Parts parts;
    parts.x = &op.read(0);
    parts.ids = &op.read(1);
    parts.weights = &op.read(2);
    parts.y = &op.write(0);
    parts.glu = op.glu();
    parts.records = builder.experts(op.integer("layer"));
    op.width(*parts.y, parts.x->width);
    op.width(*parts.weights, parts.ids->width);
    op.require(parts.ids->integers && !parts.weights->integers, "reads integers and then numbers from the router");
    op.require(parts.ids->width <= kMostChosen, "chooses more than " + std::to_string(kMostChosen) + " experts");
    for (const Buffer* buffer : {parts.x, parts.ids, parts.weights, parts.y})
        op.require(!buffer->per_row, "buffer " + buffer->name + " does not hold one row a token");
    bool seen[kActivationForms] = {};
    for (const ExpertRecord& record : parts.records) {
        op.require(record.layout->hidden == parts.x->width,
                   "the experts' width is " + std::to_string(record.layout->hidden) + ", that of buffer " +
                       parts.x->name + " " + std::to_string(parts.x->width));
        if (record.layout->ordered()) continue;
        const ActivationForm form = record.layout->input_form();
        if (std::exchange(seen[static_cast<size_t>(form)], true)) continue;
        Input input;
        input.rows = &builder.packed(*parts.x, form, input.stale);
        parts.inputs.push_back(input);
    }
    return std::make_unique<Experts>(builder.machine(), std::move(parts), builder.storage());
}

}  // namespace freetoken
