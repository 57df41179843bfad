// The recurrence that makes one entry of several tokens.
#include <algorithm>
#include <memory>
#include <utility>

#include "exec/recurrence.h"

namespace freetoken {
namespace {

constexpr int kLanes = 16;
constexpr int kTokenCost = 40;  // of a channel, in values touched: up to four exponentials

// Some channels of every row of the state.
std::vector<StatePart> cut_channels(int dim, int rows, int threads) {
    const int wanted = std::max(kLanes, dim / (2 * threads) / kLanes * kLanes);
    std::vector<StatePart> parts;
    for (int first = 0; first < dim; first += wanted) {
        const int count = std::min(wanted, dim - first);
        parts.push_back({0, 1, first, count, static_cast<size_t>(first), rows, static_cast<size_t>(count),
                         static_cast<size_t>(dim)});
    }
    return parts;
}

}  // namespace

std::unique_ptr<Operation> make_compress(const OpReader& op) {
    op.arity(2, 1, 1);
    const Buffer& kv = op.read(0);
    const Buffer& gate = op.read(1);
    const Buffer& entry = op.write(0);
    const int dim = entry.width;
    const int every = op.integer("every");
    const bool overlap = op.flag("overlap");
    const int64_t values = int64_t{overlap ? 2 : 1} * dim;
    op.require(every > 1 && values * every <= INT32_MAX, "needs several tokens an entry, and not too many");
    op.width(kv, values);
    op.width(gate, values);
    for (const Buffer* buffer : {&kv, &gate, &entry})
        op.require(!buffer->per_row && !buffer->integers, "buffer " + buffer->name + " does not hold a row a token");
    keep_apart(op, entry, kv);
    keep_apart(op, entry, gate);
    const int state = state_of(op, 3 * values);
    const float* bias = op.vector(0, static_cast<int>(values * every));
    const Machine& machine = op.builder.machine();
    const Operations& operations = *machine.operations;
    const auto body = [=, &kv, &gate, &entry, &operations](const StatePart& part, int token, int tokens, int position,
                                                           float* state_values) {
        const auto first = static_cast<size_t>(part.first);
        CompressRun run;
        run.kv = rows_from(kv, token).from(first);
        run.gate = rows_from(gate, token).from(first);
        run.entry = outputs_from(entry, token).from(first);
        run.tokens = tokens;
        run.position = position;
        run.channels = part.count;
        run.dim = static_cast<size_t>(dim);
        run.every = every;
        run.overlap = overlap;
        run.bias = bias + first;
        run.state = state_values + first;
        operations.compress(run);
    };
    return std::make_unique<Recurrence>(op.builder.states(), state, cut_channels(dim, overlap ? 6 : 3, machine.threads),
                                        kTokenCost * values, body);
}

}  // namespace freetoken
