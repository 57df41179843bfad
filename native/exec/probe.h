// Measurements on the machine itself: what memory gives, and what experts make of it.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/operation.h"
#include "exec/storage.h"
#include "pool/pool.h"

namespace freetoken {

struct Measured {
    int64_t bytes = 0;
    double seconds = 0;
};

// Reads `data` once with all threads, each a contiguous share.
Measured read_bandwidth(Pool& pool, const Machine& machine, const uint8_t* data, size_t bytes);

// Runs `order` (indices of records that lie record_bytes apart) for one token each, as a decode step would: whole
// experts, a thread takes the next when it is done with one.
Measured expert_bandwidth(Pool& pool, const Machine& machine, const RecordLayout& layout, const uint8_t* records,
                          const std::vector<int32_t>& order);

// y = x M^T for `tokens` rows of `x` [tokens][cols]; `y` is [tokens][rows].
void matmul(Pool& pool, const Machine& machine, const PackedMatrix& matrix, const float* x, int tokens, float* y);

}  // namespace freetoken
