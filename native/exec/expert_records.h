// The records of all banks of a model, found by layer and expert.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "exec/record_layout.h"

namespace freetoken {

struct ExpertRecord {
    const RecordLayout* layout = nullptr;
    const uint8_t* data = nullptr;
};

class ExpertRecords {
public:
    // Borrows the bank's memory. Throws ProgramError for records that are no
    // experts, or lie beyond their shard.
    void add(const BankSpec& bank);

    // Records of all experts of one MoE layer. Throws ProgramError, which names a
    // layer that no bank holds.
    const std::vector<ExpertRecord>& of_layer(int layer) const;

private:
    std::vector<std::unique_ptr<RecordLayout>> layouts_;
    std::map<int, std::vector<ExpertRecord>> records_;  // by MoE layer
};

}  // namespace freetoken
