// From a step as it comes from outside to one that operations may rely on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/operation.h"
#include "exec/program.h"

namespace freetoken {

// A step as it comes from outside, unchecked.
struct BatchView {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;
    std::span<const int32_t> seq_starts;
    std::vector<std::span<const int32_t>> page_tables;
    std::span<const int32_t> rows;
    std::vector<std::span<const int32_t>> window_tables = {};  // of programs with a reach
    std::span<const int32_t> states = {};                      // of recurrent programs
    std::span<const int32_t> saves = {};                       // pairs of a token and a slot
};

// What the parts of a batch must stay within.
struct BatchLimits {
    int max_tokens = 0;
    int vocabulary = 0;
    int page_tokens = 0;
    ContextRoom room;
    bool paged = false;              // the program keeps whole pages
    bool recurrent = false;          // and states
    std::vector<Sight> windows = {};  // of what it keeps in window pages; none: it keeps no such pages
};

// Throws std::invalid_argument that says what does not fit. The step borrows the arrays of the batch.
Step checked_step(const BatchView& batch, const BatchLimits& limits);

}  // namespace freetoken
