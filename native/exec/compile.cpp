// From the description of an operation to the operation.
#include <utility>

#include "exec/builder.h"

namespace freetoken {
namespace {

using Maker = std::unique_ptr<Operation> (*)(const OpReader&);

constexpr std::pair<const char*, Maker> kMakers[] = {
    {"embed", make_embed},
    {"rms_norm", make_rms_norm},
    {"layer_norm", make_layer_norm},
    {"bound", make_bound},
    {"linear", make_linear},
    {"head_linear", make_head_linear},
    {"chosen_linear", make_chosen_linear},
    {"head_copy", make_head_copy},
    {"rope", make_rope},
    {"attention", make_attention},
    {"choose", make_choose},
    {"route", make_route},
    {"experts", make_experts},
    {"glu", make_glu},
    {"sigmoid_gate", make_sigmoid_gate},
    {"add", make_add},
    {"scale", make_scale},
    {"select", make_select},
    {"conv", make_conv},
    {"delta_rule", make_delta_rule},
    {"ssm", make_ssm},
    {"compress", make_compress},
    {"compressed_attention", make_compressed_attention},
    {"l2_norm", make_l2_norm},
    {"decay", make_decay},
    {"gated_norm", make_gated_norm},
    {"gate", make_gate},
    {"stream_weights", make_stream_weights},
    {"collapse", make_collapse},
    {"expand", make_expand},
    {"relu2", make_relu2},
};

Maker maker_of(const OpReader& op, const std::string& kind) {
    for (const auto& [name, maker] : kMakers) {
        if (kind == name) return maker;
    }
    op.fail("the native executor does not know this operation");
}

}  // namespace

std::unique_ptr<Operation> make_operation(Builder& builder, const OpSpec& spec, size_t index) {
    const OpReader op(builder, spec, index);
    std::unique_ptr<Operation> operation = maker_of(op, spec.kind)(op);
    for (size_t i = 0; i < op.writes(); ++i) builder.written(op.write(i));
    return operation;
}

}  // namespace freetoken
