// Operations that treat every row by itself.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/pack.h"
#include "exec/builder.h"
#include "exec/rope_angles.h"

namespace freetoken {
namespace {

std::unique_ptr<Operation> row_operation(const Buffer& domain, int64_t cost, RowOperation::Body body) {
    return std::make_unique<RowOperation>(Clock::dense, domain.per_row, cost, std::move(body));
}

void same_domain(const OpReader& op, const Buffer& a, const Buffer& b) {
    op.require(a.per_row == b.per_row, "buffers " + a.name + " and " + b.name + " hold rows of different kinds");
}

// A run of values of every head: values [offset, offset + width) of heads that lie `stride` apart.
struct HeadRuns {
    int heads;
    int stride;
    int offset;

    HeadRuns(const OpReader& op, const Buffer& buffer, const std::string& stride_name, const std::string& offset_name,
             int64_t width)
        : heads(op.integer("heads")), stride(op.integer(stride_name)), offset(op.integer(offset_name)) {
        op.require(heads > 0 && offset + width <= stride && int64_t{heads} * stride <= buffer.width,
                   "the heads reach beyond buffer " + buffer.name);
    }
};

}  // namespace

std::unique_ptr<Operation> make_embed(const OpReader& op) {
    op.arity(0, 1, 1);
    const Buffer& x = op.write(0);
    const PackedMatrix table = op.matrix(0);
    const float scale = op.real("scale");
    op.width(x, table.cols);
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, 4 * x.width, [=, &x, &operations](const Step& step, int row) {
        unpack_row(table.codec, table.data, step.ids[row], table.cols, x.row(row));
        if (scale != 1.0f) operations.scale(x.row(row), scale, x.width);
    });
}

std::unique_ptr<Operation> make_rms_norm(const OpReader& op) {
    op.arity(1, 1, 1);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const int group = op.integer("group");
    const float eps = op.real("eps");
    op.width(y, x.width);
    same_domain(op, x, y);
    op.require(group > 0 && x.width % group == 0, "the group does not divide the width");
    const float* w = op.optional_vector(0, group);
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, x.width, [=, &x, &y, &operations](const Step&, int row) {
        for (int begin = 0; begin < x.width; begin += group)
            operations.rms_norm(x.row(row) + begin, w, eps, group, y.row(row) + begin);
    });
}

std::unique_ptr<Operation> make_layer_norm(const OpReader& op) {
    op.arity(1, 1, 2);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const int group = op.integer("group");
    const float eps = op.real("eps");
    op.width(y, x.width);
    same_domain(op, x, y);
    op.require(group > 0 && x.width % group == 0, "the group does not divide the width");
    const float* w = op.vector(0, group);
    const float* bias = op.optional_vector(1, group);
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, 2 * x.width, [=, &x, &y, &operations](const Step&, int row) {
        for (int begin = 0; begin < x.width; begin += group)
            operations.layer_norm(x.row(row) + begin, w, bias, eps, group, y.row(row) + begin);
    });
}

std::unique_ptr<Operation> make_bound(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const float bound = op.real("bound");
    const bool smooth = op.flag("smooth");
    op.width(y, x.width);
    same_domain(op, x, y);
    op.require(bound > 0.0f, "the bound must be above zero");
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, smooth ? 4 * x.width : x.width, [=, &x, &y, &operations](const Step&, int row) {
        operations.bound(x.row(row), bound, smooth, x.width, y.row(row));
    });
}

std::unique_ptr<Operation> make_head_copy(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const int width = op.integer("width");
    same_domain(op, x, y);
    const HeadRuns in(op, x, "in_stride", "in_offset", width);
    const HeadRuns out(op, y, "out_stride", "out_offset", width);
    return row_operation(x, int64_t{in.heads} * width, [=, &x, &y](const Step&, int row) {
        for (int head = 0; head < in.heads; ++head)
            std::memmove(y.row(row) + head * out.stride + out.offset, x.row(row) + head * in.stride + in.offset,
                         static_cast<size_t>(width) * sizeof(float));
    });
}

std::unique_ptr<Operation> make_rope(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.write(0);
    op.require(&op.read(0) == &x, "rotates in place");
    op.require(!x.per_row, "buffer " + x.name + " does not hold one row a token");
    const int dim = op.integer("dim");
    const bool pairs = op.flag("pairs");
    const RopeAngles& angles = op.builder.rope(op.integer("table"));
    op.require(static_cast<size_t>(dim) == 2 * angles.pairs(), "the table does not fit the dimension");
    const HeadRuns runs(op, x, "stride", "offset", dim);
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, int64_t{runs.heads} * dim, [=, &x, &angles, &operations](const Step&, int row) {
        const size_t first = static_cast<size_t>(row) * angles.pairs();
        operations.rope(x.row(row) + runs.offset, runs.heads, runs.stride, dim, pairs, angles.cosine.floats() + first,
                        angles.sine.floats() + first);
    });
}

std::unique_ptr<Operation> make_glu(const OpReader& op) {
    op.arity(2, 1, 0);
    const Buffer& gate = op.read(0);
    const Buffer& up = op.read(1);
    const Buffer& h = op.write(0);
    const Glu glu = op.glu();
    op.require(glu.is_gated(), "has an activation without a gate");
    op.width(up, gate.width);
    op.width(h, gate.width);
    same_domain(op, gate, up);
    same_domain(op, gate, h);
    const Kernels& kernels = *op.builder.machine().kernels;
    return row_operation(h, 4 * h.width, [=, &gate, &up, &h, &kernels](const Step&, int row) {
        kernels.glu(glu, gate.row(row), up.row(row), h.width, h.row(row));
    });
}

std::unique_ptr<Operation> make_sigmoid_gate(const OpReader& op) {
    op.arity(2, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& gate = op.read(1);
    const Buffer& y = op.write(0);
    op.width(y, x.width);
    same_domain(op, x, y);
    same_domain(op, x, gate);
    op.require(x.width % gate.width == 0, "the gates do not divide the width");
    const int run = x.width / gate.width;
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(y, y.width, [=, &x, &gate, &y, &operations](const Step&, int row) {
        for (int i = 0; i < gate.width; ++i)
            operations.sigmoid_gate(x.row(row) + i * run, gate.row(row)[i], run, y.row(row) + i * run);
    });
}

std::unique_ptr<Operation> make_add(const OpReader& op) {
    op.arity(1, 1, op.reads() == 1 ? 1 : 0, 1);
    const Buffer& a = op.read(0);
    const Buffer& y = op.write(0);
    const float scale = op.real("scale");
    op.width(y, a.width);
    same_domain(op, a, y);
    const Operations& operations = *op.builder.machine().operations;
    if (op.reads() == 1) {
        const float* vector = op.vector(0, a.width);
        return row_operation(y, y.width, [=, &a, &y, &operations](const Step&, int row) {
            operations.add(a.row(row), vector, scale, y.width, y.row(row));
        });
    }
    const Buffer& b = op.read(1);
    op.width(b, a.width);
    same_domain(op, a, b);
    return row_operation(y, y.width, [=, &a, &b, &y, &operations](const Step&, int row) {
        operations.add(a.row(row), b.row(row), scale, y.width, y.row(row));
    });
}

std::unique_ptr<Operation> make_scale(const OpReader& op) {
    op.arity(1, 1, 1);
    const Buffer& x = op.write(0);
    op.require(&op.read(0) == &x, "scales in place");
    const float* learned = op.optional_vector(0, 1);
    const float factor = learned != nullptr ? *learned : op.real("by");
    const Operations& operations = *op.builder.machine().operations;
    return row_operation(x, x.width,
                         [=, &x, &operations](const Step&, int row) { operations.scale(x.row(row), factor, x.width); });
}

std::unique_ptr<Operation> make_select(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& r = op.write(0);
    op.width(r, x.width);
    op.require(!x.per_row && r.per_row, "selects rows of a buffer of tokens for one of wanted logits");
    return row_operation(r, r.width, [&x, &r](const Step& step, int row) {
        std::memcpy(r.row(row), x.row(step.row_tokens[row]), static_cast<size_t>(x.width) * sizeof(float));
    });
}

namespace {

Scoring scoring_of(const OpReader& op, const std::string& name) {
    if (name == "softmax") return Scoring::softmax;
    if (name == "sigmoid") return Scoring::sigmoid;
    if (name == "softmax_topk") return Scoring::softmax_topk;
    if (name == "sqrt_softplus") return Scoring::sqrt_softplus;
    if (name == "sparse_mixer") return Scoring::sparse_mixer;
    op.fail("the scoring " + name + " is unknown");
}

constexpr int kAside = -1;  // of a router that chooses something else than experts

// The experts of every token id, [ids][top_k]; empty where a token's scores choose them.
std::vector<int32_t> experts_of_tokens(const OpReader& op, const RouteShape& shape) {
    if (!op.has_weight(1)) return {};
    const int length = op.vector_length(1);
    op.require(length > 0 && length % shape.top_k == 0, "its table does not have experts for every token");
    const float* given = op.vector(1, length);
    int& rows = op.builder.storage().token_rows;
    rows = std::min(rows, length / shape.top_k);
    std::vector<int32_t> table(static_cast<size_t>(length));
    for (size_t i = 0; i < table.size(); ++i) {
        op.require(given[i] >= 0.0f && given[i] < static_cast<float>(shape.experts) &&
                       given[i] == static_cast<float>(static_cast<int32_t>(given[i])),
                   "its table names experts that are not there");
        table[i] = static_cast<int32_t>(given[i]);
        const auto first = table.begin() + static_cast<std::ptrdiff_t>(i - i % static_cast<size_t>(shape.top_k));
        const auto own = table.begin() + static_cast<std::ptrdiff_t>(i);
        op.require(std::find(first, own, table[i]) == own, "its table names an expert twice for a token");
    }
    return table;
}

}  // namespace

std::unique_ptr<Operation> make_route(const OpReader& op) {
    op.require(op.weights() >= 1 && op.weights() <= 3, "takes a bias, perhaps a table and scales of experts");
    op.arity(1, 2, op.weights());
    const Buffer& logits = op.read(0);
    const Buffer& ids = op.write(0);
    const Buffer& weights = op.write(1);
    RouteShape shape;
    shape.experts = logits.width;
    shape.top_k = op.integer("top_k");
    shape.groups = op.integer("groups");
    shape.top_groups = op.integer("top_groups");
    shape.group_top = op.integer("group_top");
    shape.normalize = op.flag("normalize");
    shape.scale = op.real("scale");
    shape.bias = op.optional_vector(0, logits.width);
    if (op.has_weight(2)) shape.expert_scale = op.vector(2, logits.width);
    shape.scoring = scoring_of(op, op.text("scoring"));
    if (shape.scoring == Scoring::sparse_mixer) shape.jitter = op.real("jitter");
    op.width(ids, shape.top_k);
    op.width(weights, shape.top_k);
    same_domain(op, logits, ids);
    same_domain(op, logits, weights);
    op.require(ids.integers && !weights.integers, "writes integers to its first output and numbers to its second");
    op.require(shape.experts <= kMostExperts, "more than " + std::to_string(kMostExperts) + " experts");
    op.require(shape.groups >= 1 && shape.experts % shape.groups == 0, "the groups do not divide the experts");
    op.require(shape.top_groups >= 1 && shape.top_groups <= shape.groups, "too many or no groups are kept");
    op.require(shape.groups == 1 || shape.group_top >= 1, "a group must be judged by at least one expert");
    op.require(shape.top_k >= 1 && shape.top_k <= shape.experts / shape.groups * shape.top_groups,
               "more experts are wanted than there are to choose from");
    const Operations& operations = *op.builder.machine().operations;
    const std::vector<int32_t> table = experts_of_tokens(op, shape);
    Routing& routing = op.builder.storage().routing;
    const bool aside = op.has_attribute("aside") && op.flag("aside");
    const int layer = aside ? kAside : routing.add_layer(shape.experts, shape.top_k);
    return row_operation(logits, int64_t{shape.experts} * (shape.top_k + 8),
                         [=, &logits, &ids, &weights, &operations, &routing](const Step& step, int row) {
                             float scratch[3 * kMostExperts];
                             int32_t* chosen = ids.int_row(row);
                             const int32_t* given = aside ? nullptr : routing.forced(layer, row);
                             if (given == nullptr && !table.empty())
                                 given = table.data() +
                                         static_cast<size_t>(step.ids[row]) * static_cast<size_t>(shape.top_k);
                             if (given != nullptr) {
                                 std::copy_n(given, shape.top_k, chosen);
                                 operations.weigh(shape, logits.row(row), scratch, chosen, weights.row(row));
                             } else {
                                 operations.route(shape, logits.row(row), scratch, chosen, weights.row(row));
                             }
                             if (!aside) routing.keep(layer, row, chosen);
                         });
}

std::unique_ptr<Operation> make_angles(Builder& builder) {
    int64_t pairs = 0;
    for (const auto& table : builder.storage().ropes) pairs += static_cast<int64_t>(table->pairs());
    auto& tables = builder.storage().ropes;
    return std::make_unique<RowOperation>(Clock::dense, false, 64 * pairs, [&tables](const Step& step, int row) {
        for (const auto& table : tables) {
            const size_t first = static_cast<size_t>(row) * table->pairs();
            const int32_t position = step.positions[row];
            rope_angles(table->inv_freq, table->scale * table->growth.at(position), position - position % table->every,
                        table->cosine.floats() + first, table->sine.floats() + first);
        }
    });
}

}  // namespace freetoken
