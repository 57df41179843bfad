// Operations that keep a state of every sequence and read its tokens in order.
#pragma once

#include <functional>
#include <vector>

#include "exec/builder.h"
#include "exec/operation.h"
#include "exec/state_store.h"

namespace freetoken {

// What one task works on: some heads of a state and of each some columns or rows (of a convolution: no head, some
// channels). In the state these are `runs` of `width` values, `stride` apart.
struct StatePart {
    int head = 0;
    int heads = 1;
    int first = 0;
    int count = 0;
    size_t offset = 0;  // of the first run
    int runs = 0;
    size_t width = 0;
    size_t stride = 0;
};

// Values that a part should have at most: there are enough parts to share out, and each fits into a core's own cache.
int64_t part_values(int64_t state_values, int threads);

// Runs the tokens of every sequence in order, part by part, and copies the state to where it is saved.
class Recurrence final : public Operation {
public:
    // Tokens [token, token + tokens) of the batch, which are of one sequence, from a position on; `state` is that of
    // all parts.
    using Body = std::function<void(const StatePart& part, int token, int tokens, int position, float* state)>;

    // `cost` of one token, in values touched.
    Recurrence(const StateStore& states, int state, std::vector<StatePart> parts, int64_t cost, Body body);

    Work prepare(int phase, const Step& step) override;
    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override;

private:
    void run_part(const Step& step, const Sequence& sequence, const StatePart& part) const;

    const StateStore& states_;
    const int state_;
    const std::vector<StatePart> parts_;
    const int64_t cost_;
    const Body body_;
};

// The attribute `state`, checked: the state has so many values.
int state_of(const OpReader& op, int64_t values);

// Where one buffer is written, no other may be read.
void keep_apart(const OpReader& op, const Buffer& written, const Buffer& read);

// The activation of a gate or a convolution: none, sigmoid or silu.
GateKind gate_kind(const OpReader& op);

// A buffer's rows from a token on.
inline Rows rows_from(const Buffer& buffer, int token) {
    return {buffer.row(token), buffer.stride};
}
inline OutputRows outputs_from(const Buffer& buffer, int token) {
    return {buffer.row(token), buffer.stride};
}

}  // namespace freetoken
