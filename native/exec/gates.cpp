// Operations around recurrences that treat every row by itself.
#include <utility>
#include <vector>

#include "core/numerics.h"
#include "exec/recurrence.h"
#include "exec/rows.h"

namespace freetoken {

std::unique_ptr<Operation> make_l2_norm(const OpReader& op) {
    op.arity(1, 1, 0);
    const Norm norm(op);
    const Operations& operations = op.operations();
    return norm.operation(
        1, [=, &operations](const float* x, float* y) { operations.l2_norm(x, norm.eps, norm.group, y); });
}

std::unique_ptr<Operation> make_decay(const OpReader& op) {
    op.arity(1, 1, 2);
    const Buffer& a = op.read(0);
    const Buffer& g = op.write(0);
    alike(op, a, g);
    const int heads = op.integer("heads");
    op.require(heads > 0 && a.width % heads == 0, "the heads do not divide the width");
    const float bound = op.real("bound");
    const float* a_log = op.vector(0, heads);
    const float* bias = op.vector(1, a.width);
    std::vector<float> rates;
    for (int i = 0; i < a.width; ++i) rates.push_back(-exp(a_log[i / (a.width / heads)]));
    const Operations& operations = op.operations();
    return row_operation(a, 8 * int64_t{a.width},
                         [&a, &g, &operations, bound, bias, rates = std::move(rates)](const Step&, int row) {
                             operations.decay(a.row(row), rates.data(), bias, bound, a.width, g.row(row));
                         });
}

std::unique_ptr<Operation> make_gated_norm(const OpReader& op) {
    op.arity(2, 1, 1);
    const Buffer& x = op.read(0);
    const Buffer& gate = op.read(1);
    const Buffer& y = op.write(0);
    alike(op, x, gate);
    alike(op, x, y);
    const int group = group_of(op, x);
    const float eps = op.real("eps");
    const bool gate_first = op.flag("gate_first");
    const GateKind kind = gate_kind(op);
    const bool own = op.vector_length(0) != group;  // every value has a weight of its own
    const float* w = op.vector(0, own ? x.width : group);
    const Operations& operations = op.operations();
    return row_operation(x, 8 * int64_t{x.width}, [=, &x, &gate, &y, &operations](const Step&, int row) {
        for (int begin = 0; begin < x.width; begin += group)
            operations.gated_norm(kind, gate_first, x.row(row) + begin, gate.row(row) + begin, own ? w + begin : w, eps,
                                  group, y.row(row) + begin);
    });
}

std::unique_ptr<Operation> make_gate(const OpReader& op) {
    op.arity(2, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& gate = op.read(1);
    const Buffer& y = op.write(0);
    op.require(gate.width > 0 && x.width % gate.width == 0, "its gates do not divide the width");
    op.require(gate.per_row == x.per_row, "its gate holds rows of another kind");
    const bool whole = gate.width == x.width;
    const int run = whole ? x.width : x.width / gate.width;
    alike(op, x, y);
    const GateKind kind = gate_kind(op);
    const Operations& operations = op.operations();
    return row_operation(x, 4 * int64_t{x.width}, [=, &x, &gate, &y, &operations](const Step&, int row) {
        for (int begin = 0, i = 0; begin < x.width; begin += run, ++i)
            operations.gate(kind, x.row(row) + begin, gate.row(row) + i, !whole, run, y.row(row) + begin);
    });
}

std::unique_ptr<Operation> make_relu2(const OpReader& op) {
    op.arity(1, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    alike(op, x, y);
    const Operations& operations = op.operations();
    return row_operation(
        x, x.width, [&x, &y, &operations](const Step&, int row) { operations.relu2(x.row(row), x.width, y.row(row)); });
}

}  // namespace freetoken
