// Operations that treat every row by itself.
#include <cstring>

#include "core/pack.h"
#include "exec/rope_angles.h"
#include "exec/rows.h"

namespace freetoken {
namespace {

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
    const Operations& operations = op.operations();
    return row_operation(x, 4 * x.width, [=, &x, &operations](const Step& step, int row) {
        unpack_row(table.codec, table.data, step.ids[row], table.cols, x.row(row));
        if (scale != 1.0f) operations.scale(x.row(row), scale, x.width);
    });
}

std::unique_ptr<Operation> make_rms_norm(const OpReader& op) {
    op.arity(1, 1, 1);
    const Norm norm(op);
    const float* w = op.optional_vector(0, norm.group);
    const Operations& operations = op.operations();
    return norm.operation(
        1, [=, &operations](const float* x, float* y) { operations.rms_norm(x, w, norm.eps, norm.group, y); });
}

std::unique_ptr<Operation> make_layer_norm(const OpReader& op) {
    op.arity(1, 1, 2);
    const Norm norm(op);
    const float* w = op.vector(0, norm.group);
    const float* bias = op.optional_vector(1, norm.group);
    const Operations& operations = op.operations();
    return norm.operation(
        2, [=, &operations](const float* x, float* y) { operations.layer_norm(x, w, bias, norm.eps, norm.group, y); });
}

std::unique_ptr<Operation> make_bound(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const float bound = op.real("bound");
    const bool smooth = op.flag("smooth");
    alike(op, x, y);
    op.require(bound > 0.0f, "the bound must be above zero");
    const Operations& operations = op.operations();
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
    const Operations& operations = op.operations();
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
    alike(op, gate, up);
    alike(op, gate, h);
    const Kernels& kernels = op.kernels();
    return row_operation(h, 4 * h.width, [=, &gate, &up, &h, &kernels](const Step&, int row) {
        kernels.glu(glu, gate.row(row), up.row(row), h.width, h.row(row));
    });
}

std::unique_ptr<Operation> make_sigmoid_gate(const OpReader& op) {
    op.arity(2, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& gate = op.read(1);
    const Buffer& y = op.write(0);
    alike(op, x, y);
    same_domain(op, x, gate);
    op.require(x.width % gate.width == 0, "the gates do not divide the width");
    const int run = x.width / gate.width;
    const Operations& operations = op.operations();
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
    alike(op, a, y);
    const Operations& operations = op.operations();
    if (op.reads() == 1) {
        const float* vector = op.vector(0, a.width);
        return row_operation(y, y.width, [=, &a, &y, &operations](const Step&, int row) {
            operations.add(a.row(row), vector, scale, y.width, y.row(row));
        });
    }
    const Buffer& b = op.read(1);
    alike(op, a, b);
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
    const Operations& operations = op.operations();
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
