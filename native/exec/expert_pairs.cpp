#include "exec/expert_pairs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace freetoken {
namespace {

constexpr int64_t kPieceBytes = 64 * 1024;  // of weights, where an expert is shared out

}  // namespace

ExpertPairs::ExpertPairs(const Machine& machine, const Buffer& x, Parts parts, Workspace& workspace,
                         ExpertCounters& counters)
    : machine_(machine),
      x_(x),
      parts_(std::move(parts)),
      workspace_(workspace),
      counters_(counters),
      output_stride_((static_cast<size_t>(x.width) + 15) / 16 * 16) {
    for (const ExpertRecord& record : parts_.records) {
        const ExpertScratch scratch(machine, *record.layout);
        scratch_bytes_ = std::max(scratch_bytes_, scratch.bytes());
        hidden_stride_ = std::max(hidden_stride_, scratch.packed_stride());
        gate_up_stride_ = std::max(gate_up_stride_, gate_up_stride(*record.layout));
        width_ = std::max(width_, record.layout->width);
        ordered_ = ordered_ || record.layout->ordered();
        input_stride_ = std::max(input_stride_, scratch.input_stride());
    }
    for (const PackedInput& input : parts_.inputs) stale_ = stale_ || input.stale;
}

std::vector<ActivationForm> ExpertPairs::input_forms(const std::vector<ExpertRecord>& records) {
    std::vector<ActivationForm> forms;
    for (const ExpertRecord& record : records) {
        const ActivationForm form = record.layout->input_form();
        if (!record.layout->ordered() && std::find(forms.begin(), forms.end(), form) == forms.end())
            forms.push_back(form);
    }
    return forms;
}

Work ExpertPairs::prepare(int phase, const PairIds& list, float* outputs) {
    switch (phase) {
        case 0:
            outputs_ = outputs;
            plan(list);
            if (ordered_) return {{static_cast<uint32_t>(shared_rows_)}, int64_t{4} * x_.width * shared_rows_};
            return {{stale_ ? static_cast<uint32_t>(tokens_) : 0, 4}, int64_t{2} * x_.width * tokens_};
        case 1:
            return {{whole_ + static_cast<uint32_t>(gate_up_.size()), 1, true}, kNeverAlone};
        case 2:
            return {{static_cast<uint32_t>(shared_rows_)}, int64_t{6} * width_ * shared_rows_};
        case 3:
            return {{static_cast<uint32_t>(down_.size())}, kNeverAlone};
        default:
            return {{outputs_ != nullptr ? repeated_ : 0, 1, true}, int64_t{x_.width} * repeated_rows_};
    }
}

void ExpertPairs::run(int phase, TaskRange tasks, uint8_t* scratch) {
    for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
        if (phase == 0 && ordered_)
            pack_shared(static_cast<int>(task), scratch);
        else if (phase == 0)
            pack(static_cast<int>(task));
        else if (phase == 1 && task < whole_)
            run_whole(groups_.groups()[task], scratch);
        else if (phase == 1)
            run_gate_up(gate_up_[task - whole_]);
        else if (phase == 2)
            run_activation(static_cast<int>(task), scratch);
        else if (phase == 3)
            run_down(down_[task]);
        else
            deliver(groups_.groups()[task]);
    }
}

// Groups the tokens by expert. The smallest experts, fewer than there are
// threads, are cut into pieces, which fill up the threads that are done with
// whole ones.
void ExpertPairs::plan(const PairIds& list) {
    tokens_ = list.tokens;
    groups_.gather(list, static_cast<int>(parts_.records.size()));
    const auto& groups = groups_.groups();
    whole_ = static_cast<uint32_t>(groups.size() - groups.size() % static_cast<size_t>(machine_.threads));
    shared_.clear();
    gate_up_.clear();
    down_.clear();
    shared_rows_ = 0;
    repeated_ = 0;
    repeated_rows_ = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
        const RecordLayout& layout = *record(groups[i]).layout;
        counters_.bytes += static_cast<int64_t>(layout.bytes);
        if (groups[i].count > 1) {  // the largest come first
            ++repeated_;
            repeated_rows_ += groups[i].count;
        }
        if (i < whole_) continue;
        shared_.push_back({groups[i], shared_rows_});
        shared_rows_ += groups[i].count;
        cut(gate_up_, gate_up_tasks(layout), gate_up_task_bytes(layout));
        cut(down_, static_cast<int>(tile_count(layout.hidden)), tile_bytes(layout.down.codec, layout.width));
    }
    counters_.experts += static_cast<int64_t>(groups.size());
    const auto rows = static_cast<size_t>(shared_rows_);
    workspace_.expert_gate_up.reserve(rows * gate_up_stride_ * sizeof(float));
    workspace_.expert_hidden.reserve(rows * hidden_stride_);
    if (ordered_) workspace_.expert_inputs.reserve(2 * rows * input_stride_);
    workspace_.expert_outputs.reserve(static_cast<size_t>(groups_.pairs()) * output_stride_ * sizeof(float));
}

// Cuts the expert that was shared last.
void ExpertPairs::cut(std::vector<Piece>& into, int tiles, int64_t tile_bytes) const {
    const auto tiles_a_piece = static_cast<int>(std::max<int64_t>(1, kPieceBytes / tile_bytes));
    const int pieces = (tiles + tiles_a_piece - 1) / tiles_a_piece;
    for (int i = 0; i < pieces; ++i) into.push_back({shared_.size() - 1, tiles * i / pieces, tiles * (i + 1) / pieces});
}

bool ExpertPairs::has_pairs(int token) const {
    const int32_t* pairs = groups_.pairs_of(token);
    return std::any_of(pairs, pairs + groups_.top_k(), [](int32_t pair) { return pair >= 0; });
}

Activations ExpertPairs::input(const ExpertGroups::Group& group) const {
    const ActivationForm form = record(group).layout->input_form();
    const PackedRows* rows = parts_.inputs[0].rows;
    for (const PackedInput& candidate : parts_.inputs) {
        if (candidate.rows->form == form) rows = candidate.rows;
    }
    return {rows->row(0), rows->stride, groups_.tokens(group)};
}

GateUpInput ExpertPairs::shared_input(const SharedExpert& shared) const {
    if (!ordered_) return {input(shared.group), input(shared.group)};
    const uint8_t* gate = input_row(shared.first_row);
    return {{gate, 2 * input_stride_, nullptr}, {gate + input_stride_, 2 * input_stride_, nullptr}};
}

size_t ExpertPairs::shared_expert_of(int row) const {
    size_t expert = 0;
    while (expert + 1 < shared_.size() && shared_[expert + 1].first_row <= row) ++expert;
    return expert;
}

// A single pair's output goes straight to where it is wanted.
float* ExpertPairs::output_of(const ExpertGroups::Group& group) const {
    return outputs_ != nullptr && group.count == 1 ? wanted_row(*groups_.places(group)) : kept_row(group.first);
}

void ExpertPairs::pack(int token) const {
    if (!has_pairs(token)) return;
    for (const PackedInput& input : parts_.inputs) {
        if (input.stale) input.rows->pack(*machine_.kernels, x_.row(token), static_cast<size_t>(token));
    }
}

void ExpertPairs::pack_shared(int row, uint8_t* scratch) {
    const SharedExpert& shared = shared_[shared_expert_of(row)];
    const ExpertRecord& owner = record(shared.group);
    const int32_t* token = groups_.tokens(shared.group) + (row - shared.first_row);
    uint8_t* gate = input_row(row);
    pack_in_order(machine_, owner, owner.layout->gate_order, x_, token, 1, scratch, gate, input_stride_);
    pack_in_order(machine_, owner, owner.layout->up_order, x_, token, 1, scratch, gate + input_stride_, input_stride_);
}

void ExpertPairs::run_whole(const ExpertGroups::Group& group, uint8_t* scratch) {
    const Activations packed = ordered_ ? Activations{} : input(group);
    run_expert(machine_, parts_.glu, record(group), {packed, &x_, groups_.tokens(group)}, group.count, scratch,
               output_of(group), output_stride_);
}

void ExpertPairs::run_gate_up(const Piece& piece) {
    const SharedExpert& shared = shared_[piece.expert];
    multiply_gate_up(machine_, record(shared.group), piece.begin, piece.end, shared_input(shared), shared.group.count,
                     gate_up_row(shared.first_row), gate_up_stride_);
}

void ExpertPairs::run_activation(int row, uint8_t* scratch) {
    const ExpertRecord& owner = record(shared_[shared_expert_of(row)].group);
    float* h = ExpertScratch(machine_, *owner.layout).hidden(scratch);
    activate(machine_, parts_.glu, owner, gate_up_row(row), h);
    machine_.kernels->pack_activations(activation_form(owner.layout->down.codec), h, owner.layout->width,
                                       hidden_row(row));
}

void ExpertPairs::run_down(const Piece& piece) {
    const SharedExpert& shared = shared_[piece.expert];
    const Activations h = {hidden_row(shared.first_row), hidden_stride_, nullptr};
    multiply_down(machine_, record(shared.group), piece.begin, piece.end, h, shared.group.count,
                  output_of(shared.group), output_stride_);
}

void ExpertPairs::deliver(const ExpertGroups::Group& group) const {
    const int32_t* places = groups_.places(group);
    for (int i = 0; i < group.count; ++i)
        std::memcpy(wanted_row(places[i]), kept_row(group.first + i), static_cast<size_t>(x_.width) * sizeof(float));
}

}  // namespace freetoken
