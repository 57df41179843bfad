// The recurrent operations: convolutions, delta nets and state spaces.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/numerics.h"
#include "exec/recurrence.h"

namespace freetoken {
namespace {

constexpr int kLanes = 16;
constexpr int kMostChannels = 1024;  // of one task of a convolution
constexpr int kExpCost = 8;          // of an exponential, in values touched

int whole_lanes(int64_t n) {
    return static_cast<int>(std::max<int64_t>(n / kLanes * kLanes, kLanes));
}

std::unique_ptr<Operation> recurrence(const OpReader& op, int state, std::vector<StatePart> parts, int64_t cost,
                                      Recurrence::Body body) {
    return std::make_unique<Recurrence>(op.builder.states(), state, std::move(parts), cost, std::move(body));
}

void rows_of_tokens(const OpReader& op, std::initializer_list<const Buffer*> buffers) {
    for (const Buffer* buffer : buffers)
        op.require(!buffer->per_row && !buffer->integers, "buffer " + buffer->name + " does not hold a row a token");
}

// Whole blocks of channels, each of so many rows.
std::vector<StatePart> cut_channels(int channels, int rows, int wanted) {
    std::vector<StatePart> parts;
    for (int first = 0; first < channels; first += wanted) {
        const int count = std::min(wanted, channels - first);
        const size_t width = static_cast<size_t>(count) * static_cast<size_t>(rows);
        const size_t offset = static_cast<size_t>(first) * static_cast<size_t>(rows);
        parts.push_back({first, count, first, count, offset, 1, width, width});
    }
    return parts;
}

// Values that come a channel after another, in the blocks of ops/recurrences.h.
std::vector<float> in_blocks(const float* values, int channels, int rows) {
    std::vector<float> blocks(static_cast<size_t>(channels) * static_cast<size_t>(rows));
    float* next = blocks.data();
    for (int first = 0; first < channels; first += kLanes)
        for (int row = 0; row < rows; ++row)
            for (int c = first; c < std::min(first + kLanes, channels); ++c)
                *next++ = values[static_cast<size_t>(c) * static_cast<size_t>(rows) + static_cast<size_t>(row)];
    return blocks;
}

std::vector<StatePart> cut_columns(int heads, int k_dim, int v_dim, int64_t values) {
    const int wanted = std::min(v_dim, whole_lanes(values / k_dim));
    const auto head_values = static_cast<size_t>(k_dim) * static_cast<size_t>(v_dim);
    std::vector<StatePart> parts;
    for (int head = 0; head < heads; ++head) {
        for (int first = 0; first < v_dim; first += wanted) {
            const int count = std::min(wanted, v_dim - first);
            parts.push_back({head, 1, first, count,
                             static_cast<size_t>(head) * head_values + static_cast<size_t>(first), k_dim,
                             static_cast<size_t>(count), static_cast<size_t>(v_dim)});
        }
    }
    return parts;
}

// Whole heads where they are small, else rows of one.
std::vector<StatePart> cut_rows(const SsmShape& shape, int64_t values) {
    const auto row_values = static_cast<size_t>(shape.state_dim);
    const auto rows_wanted = std::max<int64_t>(values / shape.state_dim, 1);
    const auto heads_wanted = static_cast<int>(std::max<int64_t>(rows_wanted / shape.head_dim, 1));
    const auto wanted = static_cast<int>(std::min<int64_t>(rows_wanted, shape.head_dim));
    std::vector<StatePart> parts;
    for (int head = 0; head < shape.heads; head += heads_wanted) {
        const int heads = std::min(heads_wanted, shape.heads - head);
        for (int first = 0; first < shape.head_dim; first += wanted) {
            const int count = std::min(wanted, shape.head_dim - first);
            const size_t row =
                static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) + static_cast<size_t>(first);
            const size_t width = static_cast<size_t>(heads) * static_cast<size_t>(count) * row_values;
            parts.push_back({head, heads, first, count, row * row_values, 1, width, width});
        }
    }
    return parts;
}

// Logarithms of decays that are fixed: head h of n has -slope * 2^(-8 (h + 1) / n).
std::vector<float> fixed_decays(int heads, float slope) {
    std::vector<float> decays;
    for (int h = 0; h < heads; ++h) decays.push_back(static_cast<float>(-double{slope} * std::exp2(-8.0 * (h + 1) / heads)));
    return decays;
}

std::vector<float> below_zero(const float* a_log, size_t n) {
    std::vector<float> a(n);
    std::transform(a_log, a_log + n, a.begin(), [](float x) { return canonical(-exp(x)); });
    return a;
}

}  // namespace

std::unique_ptr<Operation> make_conv(const OpReader& op) {
    op.arity(1, 1, 2);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    const int channels = op.integer("channels");
    const int kernel = op.integer("kernel");
    op.require(channels > 0 && kernel > 1, "needs channels and a kernel of more than one value");
    op.width(x, channels);
    op.width(y, channels);
    rows_of_tokens(op, {&x, &y});
    if (x.data != y.data) keep_apart(op, y, x);
    const int state = state_of(op, int64_t{channels} * (kernel - 1));
    const float* bias = op.optional_vector(1, channels);
    const int64_t weights = int64_t{channels} * kernel;
    op.require(weights <= INT32_MAX, "has too many weights");
    const GateKind activation = gate_kind(op);
    const Machine& machine = op.builder.machine();
    const int wanted = std::min(whole_lanes(channels / (2 * machine.threads)), kMostChannels);
    std::vector<StatePart> parts = cut_channels(channels, kernel - 1, wanted);
    const Operations& operations = *machine.operations;
    const float* given = op.vector(0, static_cast<int>(weights));
    const auto body = [=, &x, &y, &operations, w = in_blocks(given, channels, kernel)](
                          const StatePart& part, int token, int tokens, int /*position*/, float* values) {
        const auto first = static_cast<size_t>(part.first);
        ConvRun run;
        run.x = rows_from(x, token).from(first);
        run.y = outputs_from(y, token).from(first);
        run.tokens = tokens;
        run.channels = part.count;
        run.kernel = kernel;
        run.w = w.data() + first * static_cast<size_t>(kernel);
        run.bias = bias == nullptr ? nullptr : bias + first;
        run.activation = activation;
        run.history = values + part.offset;
        operations.conv(run);
    };
    return recurrence(op, state, std::move(parts), weights + int64_t{channels} * kExpCost, body);
}

std::unique_ptr<Operation> make_delta_rule(const OpReader& op) {
    op.arity(3, 1, 0, 2);
    const Buffer& q = op.read(0);
    const Buffer& k = op.read(1);
    const Buffer& v = op.read(2);
    const bool corrects = op.has_read(3);
    const Buffer& g = corrects ? op.read(3) : q;  // where there is no correction, nobody reads either
    const Buffer& b = corrects ? op.read(4) : q;
    const Buffer& o = op.write(0);
    const int heads = op.integer("heads");
    const int key_heads = op.integer("key_heads");
    const int k_dim = op.integer("k_dim");
    const int v_dim = op.integer("v_dim");
    const float scale = op.real("scale");
    op.require(key_heads > 0 && heads > 0 && heads % key_heads == 0, "the key heads do not divide the heads");
    op.require(k_dim > 0 && v_dim > 0 && k_dim <= kMostKeyChannels,
               "a head needs values, and at most " + std::to_string(kMostKeyChannels) + " key channels");
    op.width(q, int64_t{key_heads} * k_dim);
    op.width(k, int64_t{key_heads} * k_dim);
    op.width(v, int64_t{heads} * v_dim);
    if (corrects) op.width(b, heads);
    op.width(o, int64_t{heads} * v_dim);
    const bool channelwise = corrects && g.width != heads;
    if (channelwise) op.width(g, int64_t{heads} * k_dim);
    const std::vector<float> fixed = corrects ? std::vector<float>{} : fixed_decays(heads, op.real("slope"));
    rows_of_tokens(op, {&q, &k, &v, &g, &b, &o});
    for (const Buffer* read : {&q, &k, &v, &g, &b}) keep_apart(op, o, *read);
    const int64_t values = int64_t{heads} * k_dim * v_dim;
    const int state = state_of(op, values);
    const Machine& machine = op.builder.machine();
    const Operations& operations = *machine.operations;
    const auto body = [=, &q, &k, &v, &g, &b, &o, &operations](const StatePart& part, int token, int tokens,
                                                               int /*position*/, float* values) {
        const auto head = static_cast<size_t>(part.head);
        const size_t keys = head / static_cast<size_t>(heads / key_heads) * static_cast<size_t>(k_dim);
        const size_t columns = head * static_cast<size_t>(v_dim) + static_cast<size_t>(part.first);
        DeltaRun run;
        run.q = rows_from(q, token).from(keys);
        run.k = rows_from(k, token).from(keys);
        run.v = rows_from(v, token).from(columns);
        if (corrects) {
            run.decay = rows_from(g, token).from(channelwise ? head * static_cast<size_t>(k_dim) : head);
            run.beta = rows_from(b, token).from(head);
        } else {
            run.decay = {&fixed[head], 0};
        }
        run.corrects = corrects;
        run.o = outputs_from(o, token).from(columns);
        run.tokens = tokens;
        run.k_dim = k_dim;
        run.columns = part.count;
        run.channelwise = channelwise;
        run.scale = scale;
        run.state = values + part.offset;
        run.state_stride = static_cast<size_t>(v_dim);
        operations.delta_rule(run);
    };
    return recurrence(op, state, cut_columns(heads, k_dim, v_dim, part_values(values, machine.threads)), 2 * values,
                      body);
}

std::unique_ptr<Operation> make_ssm(const OpReader& op) {
    op.arity(4, 1, 3);
    const Buffer& x = op.read(0);
    const Buffer& dt = op.read(1);
    const Buffer& b = op.read(2);
    const Buffer& c = op.read(3);
    const Buffer& y = op.write(0);
    SsmShape shape;
    shape.heads = op.integer("heads");
    shape.head_dim = op.integer("head_dim");
    shape.groups = op.integer("groups");
    shape.state_dim = op.integer("state_dim");
    shape.dt_min = op.real("dt_min");
    shape.dt_max = op.real("dt_max");
    op.require(shape.groups > 0 && shape.heads > 0 && shape.heads % shape.groups == 0,
               "the groups do not divide the heads");
    op.require(shape.head_dim > 0 && shape.state_dim > 0, "a head needs values and a state");
    const int64_t inputs = int64_t{shape.heads} * shape.head_dim;
    op.width(x, inputs);
    op.width(y, inputs);
    op.width(dt, shape.heads);
    op.width(b, int64_t{shape.groups} * shape.state_dim);
    op.width(c, int64_t{shape.groups} * shape.state_dim);
    rows_of_tokens(op, {&x, &dt, &b, &c, &y});
    for (const Buffer* read : {&dt, &b, &c}) keep_apart(op, y, *read);
    if (x.data != y.data) keep_apart(op, y, x);
    const int state = state_of(op, inputs * shape.state_dim);
    const int a_width = op.vector_length(0);
    shape.by_channel = a_width != shape.heads;
    op.require(!shape.by_channel || int64_t{a_width} == int64_t{shape.heads} * shape.state_dim,
               "needs one value of a_log a head, or one a head and value of its state");
    op.require(!shape.by_channel || (shape.head_dim == 1 && shape.groups == 1),
               "has rates for every value of a state; then a head is one channel, and all are of one group");
    shape.d = op.vector(1, shape.heads);
    shape.dt_bias = op.vector(2, shape.heads);
    const Machine& machine = op.builder.machine();
    const Operations& operations = *machine.operations;
    const int64_t wanted = part_values(inputs * shape.state_dim, machine.threads);
    std::vector<StatePart> parts =
        shape.by_channel ? cut_channels(shape.heads, shape.state_dim, whole_lanes(wanted / shape.state_dim))
                         : cut_rows(shape, wanted);
    std::vector<float> rates = below_zero(op.vector(0, a_width), static_cast<size_t>(a_width));
    if (shape.by_channel) rates = in_blocks(rates.data(), shape.heads, shape.state_dim);
    const auto body = [=, &x, &dt, &b, &c, &y, &operations, a = std::move(rates)](
                          const StatePart& part, int token, int tokens, int /*position*/, float* values) {
        SsmShape with_a = shape;
        with_a.a = a.data();
        SsmRun run;
        run.x = rows_from(x, token);
        run.dt = rows_from(dt, token);
        run.b = rows_from(b, token);
        run.c = rows_from(c, token);
        run.y = outputs_from(y, token);
        run.tokens = tokens;
        run.head = part.head;
        run.heads = part.heads;
        run.first = part.first;
        run.rows = part.count;
        run.state = values;
        operations.ssm(with_a, run);
    };
    const int64_t cost = inputs * shape.state_dim * (shape.by_channel ? kExpCost : 1);
    return recurrence(op, state, std::move(parts), cost, body);
}

}  // namespace freetoken
