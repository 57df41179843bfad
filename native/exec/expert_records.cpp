#include "exec/expert_records.h"

#include <string>

namespace freetoken {

void ExpertRecords::add(const BankSpec& bank) {
    layouts_.push_back(std::make_unique<RecordLayout>(record_layout(bank.fields, bank.record_bytes)));
    if (bank.experts_per_layer <= 0 || bank.records_per_shard == 0) throw ProgramError("a bank of experts is empty");
    size_t index = 0;
    for (const int layer : bank.layers) {
        std::vector<ExpertRecord>& experts = records_[layer];
        if (!experts.empty()) throw ProgramError("two banks hold the experts of MoE layer " + std::to_string(layer));
        for (int expert = 0; expert < bank.experts_per_layer; ++expert, ++index) {
            const size_t shard = index / bank.records_per_shard;
            const size_t offset = index % bank.records_per_shard * bank.record_bytes;
            if (shard >= bank.shards.size() || offset + bank.record_bytes > bank.shards[shard].bytes)
                throw ProgramError("expert " + std::to_string(expert) + " of MoE layer " + std::to_string(layer) +
                                   " lies beyond its bank");
            experts.push_back({layouts_.back().get(), bank.shards[shard].data + offset});
        }
    }
}

const std::vector<ExpertRecord>& ExpertRecords::of_layer(int layer) const {
    const auto found = records_.find(layer);
    if (found == records_.end()) throw ProgramError("no bank holds the experts of MoE layer " + std::to_string(layer));
    return found->second;
}

}  // namespace freetoken
