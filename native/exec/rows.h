// What makers of operations that treat every row by itself have in common.
#pragma once

#include <memory>
#include <utility>

#include "exec/builder.h"

namespace freetoken {

// Runs `body` on every row of the domain of a buffer. `cost` is that of one row, in values touched.
inline std::unique_ptr<Operation> row_operation(const Buffer& domain, int64_t cost, RowOperation::Body body) {
    return std::make_unique<RowOperation>(Clock::dense, domain.per_row, cost, std::move(body));
}

// Requires rows of the same domain.
inline void same_domain(const OpReader& op, const Buffer& a, const Buffer& b) {
    op.require(a.per_row == b.per_row, "buffers " + a.name + " and " + b.name + " hold rows of different kinds");
}

// Requires rows of the same domain that are equally wide.
inline void alike(const OpReader& op, const Buffer& a, const Buffer& b) {
    op.width(b, a.width);
    same_domain(op, a, b);
}

// The attribute `group`, checked: a row is one or more runs of so many values.
inline int group_of(const OpReader& op, const Buffer& x) {
    const int group = op.integer("group");
    op.require(group > 0 && x.width % group == 0, "the group does not divide the width");
    return group;
}

// What every norm has: rows like those that it reads, each in runs of `group` values.
struct Norm {
    const Buffer& x;
    const Buffer& y;
    int group;
    float eps;

    explicit Norm(const OpReader& op) : x(op.read(0)), y(op.write(0)), group(group_of(op, x)), eps(op.real("eps")) {
        alike(op, x, y);
    }

    // Computes `run(from, to)` for every run of every row; `cost` is that of a value.
    template <class Run>
    std::unique_ptr<Operation> operation(int64_t cost, Run run) const {
        return row_operation(x, cost * x.width, [norm = *this, run](const Step&, int row) {
            for (int begin = 0; begin < norm.x.width; begin += norm.group)
                run(norm.x.row(row) + begin, norm.y.row(row) + begin);
        });
    }
};

}  // namespace freetoken
