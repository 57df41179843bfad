#include "hybrid/cpu_share.h"

#include <algorithm>
#include <string>
#include <utility>

namespace freetoken {

CpuShare::CpuShare(const std::vector<BankSpec>& banks, const std::vector<Glu>& activations, const MailboxShape& shape,
                   const MailboxView& box, const Kernels& kernels, const Operations& operations, std::vector<int> cpus)
    : shape_(shape), box_(box), pool_(std::move(cpus)), machine_{&kernels, &operations, pool_.size()} {
    for (const BankSpec& bank : banks) records_.add(bank);
    x_.name = x_.root = "mailbox";
    x_.width = shape.hidden;
    x_.data = box.inputs();
    x_.stride = mailbox_row_stride(static_cast<uint64_t>(shape.hidden));
    for (size_t layer = 0; layer < activations.size(); ++layer)
        add_layer(activations[layer], records_.of_layer(static_cast<int>(layer)));
    scratch_stride_ = (scratch_stride_ + 4095) / 4096 * 4096;
    scratch_ = Mapping(scratch_stride_ * static_cast<size_t>(machine_.threads));
}

void CpuShare::add_layer(const Glu& activation, const std::vector<ExpertRecord>& records) {
    ExpertPairs::Parts parts = {activation, records, {}};
    for (const ExpertRecord& record : records) {
        if (record.layout->gated() != activation.is_gated())
            throw ProgramError("experts do not fit their activation");
        if (record.layout->hidden != shape_.hidden)
            throw ProgramError("experts of width " + std::to_string(record.layout->hidden) + " beside a mailbox of " +
                               std::to_string(shape_.hidden));
    }
    for (const ActivationForm form : ExpertPairs::input_forms(records)) parts.inputs.push_back({&packed(form), true});
    layers_.push_back(std::make_unique<ExpertPairs>(machine_, x_, std::move(parts), workspace_, counters_));
    scratch_stride_ = std::max(scratch_stride_, layers_.back()->scratch_bytes());
}

// Rows of one form serve all layers: each packs its own input anew.
const PackedRows& CpuShare::packed(ActivationForm form) {
    for (const auto& rows : packed_) {
        if (rows->form == form) return *rows;
    }
    packed_.push_back(
        std::make_unique<PackedRows>(*machine_.kernels, form, shape_.hidden, static_cast<size_t>(shape_.max_tokens)));
    return *packed_.back();
}

PairIds CpuShare::list() const {
    const uint32_t rows = box_.rows();
    const uint32_t top_k = box_.top_k();
    if (rows > static_cast<uint32_t>(shape_.max_tokens) || top_k > static_cast<uint32_t>(shape_.top_k))
        throw std::invalid_argument("the device asked for " + std::to_string(rows) + " tokens of " +
                                    std::to_string(top_k) + " experts each");
    PairIds list;
    list.tokens = static_cast<int>(rows);
    list.top_k = static_cast<int>(top_k);
    list.ids = box_.ids();
    list.stride = top_k;
    list.partial = true;
    return list;
}

bool CpuShare::run(uint32_t layer) {
    if (layer >= layers_.size()) throw std::invalid_argument("the device asked for MoE layer " + std::to_string(layer));
    list_ = list();
    const auto pairs = static_cast<size_t>(list_.tokens) * static_cast<size_t>(list_.top_k);
    if (std::all_of(list_.ids, list_.ids + pairs, [](int32_t id) { return id < 0; })) return false;
    current_ = layers_[layer].get();
    phase_ = 0;
    pool_.run(*this);
    return true;
}

// Small phases are run here and now, which costs less than to wake the others.
Phase CpuShare::next(int thread) {
    while (phase_ < ExpertPairs::kPhases) {
        const int phase = phase_++;
        const Work work = current_->prepare(phase, list_, box_.outputs());
        if (work.phase.count == 0) continue;
        if (machine_.threads > 1 && work.cost > Settings{}.serial_cost) return work.phase;
        current_->run(phase, {0, work.phase.count}, scratch(thread));
    }
    return {};
}

void CpuShare::run(TaskRange tasks, int thread) {
    current_->run(phase_ - 1, tasks, scratch(thread));
}

}  // namespace freetoken
