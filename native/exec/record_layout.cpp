#include "exec/record_layout.h"

#include <algorithm>
#include <iterator>

namespace freetoken {
namespace {

constexpr size_t kFieldAlignment = 64;

RecordField* field_named(RecordLayout& layout, const std::string& name) {
    const std::pair<const char*, RecordField*> known[] = {
        {"gate_up", &layout.gate_up},
        {"gate", &layout.gate},
        {"up", &layout.up},
        {"down", &layout.down},
        {"gate_bias", &layout.gate_bias},
        {"up_bias", &layout.up_bias},
        {"down_bias", &layout.down_bias},
        {"gate.order", &layout.gate_order},
        {"up.order", &layout.up_order},
    };
    for (const auto& [known_name, field] : known) {
        if (name == known_name) return field;
    }
    return nullptr;
}

bool is_vector(const RecordLayout& layout, const RecordField* field) {
    const RecordField* vectors[] = {&layout.gate_bias, &layout.up_bias, &layout.down_bias, &layout.gate_order,
                                    &layout.up_order};
    return std::find(std::begin(vectors), std::end(vectors), field) != std::end(vectors);
}

int64_t stored_bytes(const RecordField& field, bool vector) {
    return vector ? int64_t{field.cols} * 4 : packed_bytes(field.codec, field.rows, field.cols);
}

void check_length(const RecordField& field, const char* name, int wanted) {
    if (field.present && field.cols != wanted)
        throw ProgramError(std::string("the experts' ") + name + " has " + std::to_string(field.cols) +
                           " values instead of " + std::to_string(wanted));
}

void check_matrix(const RecordField& field, const char* name, int rows, int cols) {
    if (field.rows != rows || field.cols != cols)
        throw ProgramError(std::string("the experts' ") + name + " is [" + std::to_string(field.rows) + ", " +
                           std::to_string(field.cols) + "] instead of [" + std::to_string(rows) + ", " +
                           std::to_string(cols) + "]");
}

}  // namespace

RecordLayout record_layout(const std::vector<FieldSpec>& fields, size_t record_bytes) {
    RecordLayout layout;
    layout.bytes = record_bytes;
    for (const FieldSpec& spec : fields) {
        RecordField* field = field_named(layout, spec.name);
        if (field == nullptr) throw ProgramError("experts have an unknown field " + spec.name);
        if (field->present) throw ProgramError("experts have the field " + spec.name + " twice");
        if (spec.rows <= 0 || spec.cols <= 0 || spec.offset % kFieldAlignment != 0)
            throw ProgramError("the experts' field " + spec.name + " has no valid shape or place");
        const bool vector = is_vector(layout, field);
        if (spec.vector != vector || (vector ? spec.codec != Codec::f32 : !valid_cols(spec.codec, spec.cols)))
            throw ProgramError("the experts' field " + spec.name + " is of the wrong kind");
        const bool pair = field == &layout.gate_up;
        const int64_t rows = pair ? 2 * kTileRows * tile_count(spec.rows) : spec.rows;
        *field = {true, spec.codec, static_cast<int>(rows), spec.cols, spec.offset};
        if (pair) layout.width = spec.rows;
        if (spec.offset + static_cast<size_t>(stored_bytes(*field, spec.vector)) > record_bytes)
            throw ProgramError("the experts' field " + spec.name + " reaches beyond its record");
    }
    const bool apart = layout.up.present;
    if (!layout.down.present || layout.gate_up.present == apart || (layout.gate.present && !apart))
        throw ProgramError("experts need down, and either gate_up or up, with gate or without");
    layout.hidden = layout.down.rows;
    if (apart) {
        layout.width = layout.up.rows;
        check_matrix(layout.up, "up", layout.width, layout.hidden);
    }
    if (layout.gate.present) {
        check_matrix(layout.gate, "gate", layout.width, layout.hidden);
        if (activation_form(layout.gate.codec) != activation_form(layout.up.codec))
            throw ProgramError("the experts' gate and up need activations of different forms");
    }
    if (layout.gate_up.present) check_matrix(layout.gate_up, "gate_up", layout.gate_up.rows, layout.hidden);
    check_matrix(layout.down, "down", layout.hidden, layout.width);
    check_length(layout.gate_bias, "gate_bias", layout.width);
    check_length(layout.up_bias, "up_bias", layout.width);
    check_length(layout.down_bias, "down_bias", layout.hidden);
    if ((layout.gate_bias.present || layout.gate_order.present) && !layout.gated())
        throw ProgramError("experts without a gate have a bias or an order of one");
    if (layout.ordered() && !apart) throw ProgramError("the experts' gate and up have orders, and are not apart");
    check_length(layout.gate_order, "gate.order", layout.hidden);
    check_length(layout.up_order, "up.order", layout.hidden);
    return layout;
}

}  // namespace freetoken
