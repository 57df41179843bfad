// Memory that operations work on, owned by the executor.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "exec/operation.h"
#include "exec/program.h"

namespace freetoken {

// Cosines and sines of one table for every token of the step, [tokens][pairs].
struct RopeAngles {
    std::vector<float> inv_freq;
    float scale = 1.0f;
    Mapping cosine;
    Mapping sine;

    size_t pairs() const { return inv_freq.size(); }
};

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

// How the records of one bank are laid out. Either gate_up, whose 16-row tiles are of gate and up in turn, or both.
struct RecordLayout {
    RecordField gate_up;  // rows: of both matrices, padding included
    RecordField gate, up, down;
    RecordField gate_bias, up_bias, down_bias;
    RecordField gate_order, up_order;  // of columns, a number each; only of matrices apart
    size_t bytes = 0;
    int hidden = 0;
    int width = 0;  // of the intermediate

    ActivationForm input_form() const { return activation_form(gate_up.present ? gate_up.codec : gate.codec); }
    // Whether an expert reads its input in an order of its own.
    bool ordered() const { return gate_order.present || up_order.present; }
};

struct ExpertRecord {
    const RecordLayout* layout = nullptr;
    const uint8_t* data = nullptr;
};

// Memory that one operation uses after another; each makes it as large as it needs.
struct Workspace {
    Mapping head_rows;
    Mapping attention_parts;
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
    std::vector<std::unique_ptr<RecordLayout>> layouts;
    std::map<std::tuple<std::string, int, int, ActivationForm>, Twin> twins;
    // Rows in the order of a matrix's columns, packed anew by every operation: by columns, form, and number among the
    // orders of the operation.
    std::map<std::tuple<int, ActivationForm, int>, std::unique_ptr<PackedRows>> ordered_rows;
    std::set<std::vector<int32_t>> orders;  // equal ones are one
    Workspace workspace;
    ExpertCounters experts;
};

}  // namespace freetoken
