// Operations of a residual stream that is several: the weights that mix them, and what is made of them.
#include "core/streams.h"

#include <string>

#include "exec/rows.h"

namespace freetoken {
namespace {

int streams_of(const OpReader& op) {
    const int streams = op.integer("streams");
    op.require(streams > 0 && streams <= kMostStreams,
               "mixes " + std::to_string(streams) + " streams, not 1 to " + std::to_string(kMostStreams));
    return streams;
}

}  // namespace

std::unique_ptr<Operation> make_stream_weights(const OpReader& op) {
    op.arity(1, 1, 2);
    const Buffer& weights = op.write(0);
    op.require(&op.read(0) == &weights, "works in place");
    const StreamShape shape = {streams_of(op), op.integer("iterations"), op.real("eps")};
    op.width(weights, stream_weight_count(shape));
    const float* base = op.vector(0, weights.width);
    const float* scale = op.vector(1, shape.iterations > 0 ? 3 : 1);
    const Operations& operations = op.operations();
    const int64_t cost = int64_t{weights.width} * (8 + 8 * shape.iterations);
    return row_operation(weights, cost, [=, &weights, &operations](const Step&, int row) {
        operations.stream_weights(shape, base, scale, weights.row(row));
    });
}

std::unique_ptr<Operation> make_collapse(const OpReader& op) {
    op.arity(2, 1, 0);
    const Buffer& x = op.read(0);
    const Buffer& weights = op.read(1);
    const Buffer& y = op.write(0);
    const int streams = streams_of(op);
    op.width(x, int64_t{streams} * y.width);
    op.require(weights.width >= streams, "has too few weights");
    same_domain(op, x, weights);
    same_domain(op, x, y);
    const Operations& operations = op.operations();
    return row_operation(y, x.width, [=, &x, &weights, &y, &operations](const Step&, int row) {
        const float* rows[kMostStreams];
        for (int s = 0; s < streams; ++s) rows[s] = x.row(row) + static_cast<size_t>(s) * static_cast<size_t>(y.width);
        operations.merge(rows, weights.row(row), streams, y.width, y.row(row));
    });
}

std::unique_ptr<Operation> make_expand(const OpReader& op) {
    op.arity(3, 1, 0);
    const Buffer& x = op.write(0);
    const Buffer& part = op.read(1);
    const Buffer& weights = op.read(2);
    op.require(&op.read(0) == &x, "works in place");
    const int streams = streams_of(op);
    op.width(x, int64_t{streams} * part.width);
    op.width(weights, int64_t{streams} * (2 + streams));
    same_domain(op, x, part);
    same_domain(op, x, weights);
    const Operations& operations = op.operations();
    return row_operation(x, int64_t{x.width} * streams, [=, &x, &part, &weights, &operations](const Step&, int row) {
        operations.expand_streams(streams, part.width, part.row(row), weights.row(row), x.row(row));
    });
}

}  // namespace freetoken
