// Matrices whose columns are stored in another order than their inputs': y = W x, W kept as W[:, p], is W[:, p] x[p].
#pragma once

#include <cstdint>

namespace freetoken {

// out[i] = x[columns[i]] for i in [0, n). The ranges must not overlap.
inline void gather(const float* x, const int32_t* columns, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = x[columns[i]];
}

// Column numbers from values of a record, which nobody has checked: what is no column becomes column 0, so that a
// damaged record gives wrong numbers and no wild read.
inline void read_columns(const float* values, int n, int32_t* columns) {
    for (int i = 0; i < n; ++i)
        columns[i] = values[i] >= 0.0f && values[i] < static_cast<float>(n) ? static_cast<int32_t>(values[i]) : 0;
}

}  // namespace freetoken
