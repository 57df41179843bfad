// Memory that operations work on, owned by the executor.
#pragma once

#include <climits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "exec/batch_check.h"
#include "exec/expert_records.h"
#include "exec/operation.h"
#include "exec/program.h"
#include "exec/routing.h"

namespace freetoken {

// Cosines and sines of one table for every token of the step, [tokens][pairs].
struct RopeAngles {
    std::vector<float> inv_freq;
    float scale = 1.0f;
    Growth growth;
    int every = 1;  // positions are rounded down to multiples of it
    Mapping cosine;
    Mapping sine;

    size_t pairs() const { return inv_freq.size(); }
};

// Memory that one operation uses after another; each makes it as large as it needs.
struct Workspace {
    Mapping head_rows;
    Mapping attention_parts;
    Mapping index_scores;
    Mapping expert_inputs;
    Mapping expert_outputs;
    Mapping expert_gate_up;
    Mapping expert_hidden;
};

struct ExpertCounters {
    int64_t experts = 0;
    int64_t bytes = 0;
};

struct Storage {
    // Packed rows of a buffer, shared by all operations that read it.
    struct Twin {
        std::string root;
        std::unique_ptr<PackedRows> rows;
        bool stale = true;  // while operations are made: the buffer was written since the rows were last packed
    };

    std::map<std::string, Buffer> buffers;
    std::vector<Mapping> memory;
    std::vector<std::unique_ptr<RopeAngles>> ropes;
    ExpertRecords records;
    std::map<std::tuple<std::string, int, int, ActivationForm>, Twin> twins;
    // Rows in the order of a matrix's columns, packed anew by every operation: by columns, form, and number among the
    // orders of the operation.
    std::map<std::tuple<int, ActivationForm, int>, std::unique_ptr<PackedRows>> ordered_rows;
    std::set<std::vector<int32_t>> orders;  // equal ones are one
    std::set<int> states;                   // that an operation keeps
    Workspace workspace;
    ExpertCounters experts;
    Routing routing;
    std::vector<Sight> window_sights;  // of attention in window pages
    int token_rows = INT_MAX;          // token ids that every table of them has a row for
};

}  // namespace freetoken
