// Values to raw rows: the other direction of a checkpoint's own quantisation.
#pragma once

#include <cstdint>
#include <optional>

#include "core/pack.h"

namespace freetoken {

// Whether values can be rounded to a form here: q8_0, mxfp4, nvfp4.
static constexpr bool can_encode(Form form) {
    return form == Form::q8_0 || form == Form::mxfp4 || form == Form::nvfp4;
}

// Rounds rows of `cols` f32 values, end to end, to raw rows raw_row_bytes(form, cols) apart, as docs/numerics.md says.
// Returns the first value met that is not finite, or too large for the form, or nothing. The form must be one that
// can be encoded. The caller holds a FloatMode.
std::optional<BadValue> encode_rows(Form form, const float* values, int64_t rows, int64_t cols, uint8_t* raw);

}  // namespace freetoken
