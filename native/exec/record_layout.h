// From the fields of a bank to the layout of its records.
#pragma once

#include "exec/storage.h"

namespace freetoken {

// Throws ProgramError for a field that is unknown, missing, of the wrong shape, or beyond the record's end.
RecordLayout record_layout(const std::vector<FieldSpec>& fields, size_t record_bytes);

}  // namespace freetoken
