// How the records of a bank are laid out: from the fields that describe them to
// the places of matrices and vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "kernels/kernels.h"

namespace freetoken {

// A matrix or a vector of an expert's record.
struct RecordField {
    bool present = false;
    Codec codec = Codec::f32;
    int rows = 0;
    int cols = 0;
    size_t offset = 0;

    PackedMatrix matrix(const uint8_t* record) const { return {codec, rows, cols, record + offset}; }
    const float* vector(const uint8_t* record) const {
        return present ? reinterpret_cast<const float*>(record + offset) : nullptr;
    }
};

// How the records of one bank are laid out. Either gate_up, whose 16-row tiles
// are of gate and up in turn, or both, or, of experts without a gate, up alone.
struct RecordLayout {
    RecordField gate_up;  // rows: of both matrices, padding included
    RecordField gate, up, down;
    RecordField gate_bias, up_bias, down_bias;
    RecordField gate_order,
        up_order;  // of columns, a number each; only of matrices apart
    size_t bytes = 0;
    int hidden = 0;
    int width = 0;  // of the intermediate

    ActivationForm input_form() const { return activation_form(gate_up.present ? gate_up.codec : up.codec); }
    bool gated() const { return gate_up.present || gate.present; }
    // Whether an expert reads its input in an order of its own.
    bool ordered() const { return gate_order.present || up_order.present; }
};

// Throws ProgramError for a field that is unknown, missing, of the wrong shape,
// or beyond the record's end.
RecordLayout record_layout(const std::vector<FieldSpec>& fields, size_t record_bytes);

}  // namespace freetoken
