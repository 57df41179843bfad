// What the CPU computes of the routed experts of a layer: straight from their records in host memory, on a pool.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/expert_pairs.h"
#include "exec/expert_records.h"
#include "exec/storage.h"
#include "hybrid/mailbox_view.h"
#include "pool/pool.h"

namespace freetoken {

class CpuShare final : private Job {
public:
    // `activations` has one entry a MoE layer. Borrows the banks' memory and the mailbox's. Throws ProgramError for
    // experts that do not fit.
    CpuShare(const std::vector<BankSpec>& banks, const std::vector<Glu>& activations, const MailboxShape& shape,
             const MailboxView& box, const Kernels& kernels, const Operations& operations, std::vector<int> cpus);

    int layers() const { return static_cast<int>(layers_.size()); }
    int threads() const { return pool_.size(); }

    // The pairs in the mailbox whose ids are not below zero: reads its inputs, writes the rows of its outputs. The
    // caller's thread is one of the pool's. False, at once, if there are none. Throws std::invalid_argument for a layer
    // or sizes that it has no room for, std::out_of_range for an id that is no expert's.
    bool run(uint32_t layer);

    // Of all runs; between runs.
    const ExpertCounters& counters() const { return counters_; }

private:
    void add_layer(const Glu& activation, const std::vector<ExpertRecord>& records);
    const PackedRows& packed(ActivationForm form);
    PairIds list() const;
    Phase next(int thread) override;
    void run(TaskRange tasks, int thread) override;
    uint8_t* scratch(int thread) const { return scratch_.data() + static_cast<size_t>(thread) * scratch_stride_; }

    const MailboxShape shape_;
    const MailboxView box_;
    Pool pool_;
    const Machine machine_;
    ExpertRecords records_;
    Buffer x_;
    std::vector<std::unique_ptr<PackedRows>> packed_;
    Workspace workspace_;
    ExpertCounters counters_;
    std::vector<std::unique_ptr<ExpertPairs>> layers_;
    Mapping scratch_;
    size_t scratch_stride_ = 0;

    // The run under way.
    ExpertPairs* current_ = nullptr;
    PairIds list_;
    int phase_ = 0;  // phases of `current_` that have been prepared
};

}  // namespace freetoken
