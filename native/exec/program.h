// The program as it comes from outside: names and numbers, nothing checked yet. docs/design.md lists the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "core/codec.h"
#include "exec/rope_angles.h"

namespace freetoken {

// A program, a weight or a bank that cannot be run; the message names the operation and what is wrong with it.
struct ProgramError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

struct BufferSpec {
    std::string name;
    int width = 0;
    bool per_row = false;  // one row a wanted logit instead of one a token
    bool integers = false;
    std::string base;  // not empty: a view of columns offset .. offset + width of another buffer
    int offset = 0;
};

struct CacheSpec {
    int kv_heads = 0;
    int k_dim = 0;
    int v_dim = 0;  // 0: values are the first columns of the keys
    int reach = 0;  // positions that a token sees at most; 0: all. Such a cache lies in window pages
    int every = 1;  // tokens that one entry stands for
};

// What one recurrent operation keeps of a sequence.
struct StateSpec {
    int values = 0;
};

struct RopeSpec {
    std::vector<float> inv_freq;
    float scale = 1.0f;
    Growth growth;
    int every = 1;  // positions are rounded down to multiples of it
};

using Attribute = std::variant<bool, int64_t, double, std::string>;

struct OpSpec {
    std::string kind;
    std::vector<std::string> reads;
    std::vector<std::string> writes;
    std::vector<std::string> weights;
    std::map<std::string, Attribute> attributes;
    int layer = -1;
};

// A packed matrix, or a vector: codec f32, one row, plain values.
struct WeightSpec {
    Codec codec = Codec::f32;
    int rows = 0;
    int cols = 0;
    bool vector = false;
    const uint8_t* data = nullptr;
    size_t bytes = 0;
};

// One field of an expert's record: a packed matrix, or a vector of `cols` f32 values. `gate_up` is two matrices of
// `rows` rows each, whose tiles take turns.
struct FieldSpec {
    std::string name;
    Codec codec = Codec::f32;
    int rows = 0;
    int cols = 0;
    bool vector = false;
    size_t offset = 0;
};

// Records of one layout: those of `experts_per_layer` experts for each of `layers` (MoE layers), in that order. Each
// shard but the last holds `records_per_shard` of them.
struct BankSpec {
    struct Shard {
        const uint8_t* data = nullptr;
        size_t bytes = 0;
    };

    std::vector<FieldSpec> fields;
    size_t record_bytes = 0;
    int experts_per_layer = 0;
    std::vector<int> layers;
    std::vector<Shard> shards;
    size_t records_per_shard = 0;
};

struct ProgramSpec {
    std::vector<BufferSpec> buffers;
    std::vector<OpSpec> ops;
    std::vector<CacheSpec> caches;
    std::vector<StateSpec> states;
    std::vector<RopeSpec> ropes;
    std::string output;
};

struct ModelSpec {
    ProgramSpec program;
    std::map<std::string, WeightSpec> weights;
    std::vector<BankSpec> banks;
};

// Blocks of context memory of each kind.
struct ContextRoom {
    int pages = 0;
    int windows = 0;
    int states = 0;
};

struct Settings {
    int page_tokens = 256;
    ContextRoom room;
    bool half_kv = false;
    int max_tokens = 512;         // of one step
    int64_t serial_cost = 32768;  // work, in values touched, that one thread does faster than all would together
};

}  // namespace freetoken
