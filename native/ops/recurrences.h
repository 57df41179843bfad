// Recurrences over the tokens of one sequence: what each takes and changes. docs/numerics.md has their sums.
#pragma once

#include <cstddef>
#include <cstdint>

namespace freetoken {

inline constexpr int kMostKeyChannels = 1024;  // of one head of a delta net

enum class GateKind : uint8_t { none, sigmoid, silu, softplus };

// Rows of some tokens, one after another: row t starts at data + t * stride.
struct Rows {
    const float* data = nullptr;
    size_t stride = 0;

    const float* row(int t) const { return data + static_cast<size_t>(t) * stride; }
    Rows from(size_t column) const { return {data + column, stride}; }
};

struct OutputRows {
    float* data = nullptr;
    size_t stride = 0;

    float* row(int t) const { return data + static_cast<size_t>(t) * stride; }
    OutputRows from(size_t column) const { return {data + column, stride}; }
};

// Weights and states of channels lie in blocks of sixteen channels, the last perhaps of fewer. A block has a row of its
// channels' values for every input of a convolution, or value of a state: what belongs together is read together.

// Some blocks of channels of a causal convolution. x and y may be the same rows.
struct ConvRun {
    Rows x;
    OutputRows y;
    int tokens = 0;
    int channels = 0;
    int kernel = 0;               // 2 or more
    const float* w = nullptr;     // in blocks of `kernel` rows, the oldest input's first
    const float* bias = nullptr;  // null: none
    GateKind activation = GateKind::none;
    float* history = nullptr;  // in blocks of kernel - 1 rows: the inputs before, oldest first
};

// Some value columns of one head of the gated delta rule. The state is [k_dim][state_stride]: a row a key channel.
struct DeltaRun {
    Rows q, k, v;
    Rows decay;  // logarithms: one a head, or one a key channel
    Rows beta;   // before the sigmoid
    OutputRows o;
    int tokens = 0;
    int k_dim = 0;
    int columns = 0;
    bool channelwise = false;
    bool corrects = true;  // else what is learned is v itself, without beta
    float scale = 1.0f;
    float* state = nullptr;
    size_t state_stride = 0;
};

struct SsmShape {
    int heads = 0;
    int head_dim = 0;
    int groups = 0;
    int state_dim = 0;
    float dt_min = 0.0f;
    float dt_max = 0.0f;             // 0: no upper bound
    bool by_channel = false;         // a head is a channel, of one group, with rates of its own for every value
    const float* a = nullptr;        // below zero: -exp(a_log); by channel in blocks of state_dim rows
    const float* d = nullptr;        // [heads]
    const float* dt_bias = nullptr;  // [heads]
};

// Heads [head, head + heads) of a selective state space, and of each the rows [first, first + rows) of its state
// [head_dim][state_dim]; by channel whole blocks, of state_dim rows. All pointers are those of head 0, row 0.
struct SsmRun {
    Rows x, dt, b, c;
    OutputRows y;
    int tokens = 0;
    int head = 0;
    int heads = 0;
    int first = 0;
    int rows = 0;
    float* state = nullptr;
};

// Entries of `every` tokens each, some channels of them. Of a token `dim` values, or with overlap `dim` for the next
// entry and then `dim` for its own. State: the running mean of the entry under way as [3][dim] - largest gate, sum of
// weights, weighted values - and with overlap that of the next.
struct CompressRun {
    Rows kv;
    Rows gate;
    OutputRows entry;  // zeros but for the token that completes one
    int tokens = 0;
    int position = 0;  // of the first
    int channels = 0;
    size_t dim = 0;  // of all channels
    int every = 0;
    bool overlap = false;
    const float* bias = nullptr;  // [every][dim], or [every][2][dim], added to the gates
    float* state = nullptr;
};

}  // namespace freetoken
