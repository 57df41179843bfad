// What one expert does with some tokens.
#pragma once

#include "exec/storage.h"

namespace freetoken {

// Tokens that one expert treats at a time: their rows and its weights stay in the second-level cache.
inline constexpr int kExpertTokens = 64;

// Values of one row of gate and up, 16 of each in turn, or one after the other where they are stored apart. Experts
// without a gate have rows of up alone.
size_t gate_up_stride(const RecordLayout& layout);

// Tiles of gate and up, in order of memory: of gate_up in pairs, else of gate, if there is one, and then of up. A task
// never parts a pair.
int gate_up_tasks(const RecordLayout& layout);
int64_t gate_up_task_bytes(const RecordLayout& layout);

// Packed rows that gate and up read: different ones only where they have orders of their own.
struct GateUpInput {
    Activations gate;
    Activations up;
};

// The part of the rows of `out` (`stride` values apart, at least gate_up_stride) that the tasks [begin, end) cover.
void multiply_gate_up(const Machine& machine, const ExpertRecord& expert, int begin, int end, const GateUpInput& x,
                      int tokens, float* out, size_t stride);

// The activation of one row, biases included: h[0..width) from a row that multiply_gate_up has finished.
void activate(const Machine& machine, const Glu& glu, const ExpertRecord& expert, float* gate_up, float* h);

// Rows of `out` (`stride` values apart) of the tiles [begin, end) of down, bias included.
void multiply_down(const Machine& machine, const ExpertRecord& expert, int begin, int end, const Activations& h,
                   int tokens, float* out, size_t stride);

// Private memory for a whole expert at kExpertTokens tokens a time.
class ExpertScratch {
public:
    explicit ExpertScratch(const Machine& machine, const RecordLayout& layout);

    size_t bytes() const { return bytes_; }
    float* gate_up(uint8_t* memory) const { return reinterpret_cast<float*>(memory); }
    float* hidden(uint8_t* memory) const { return reinterpret_cast<float*>(memory + hidden_); }
    uint8_t* packed(uint8_t* memory) const { return memory + packed_; }
    size_t packed_stride() const { return packed_stride_; }

    // Of an expert with orders: columns, a row in their order, and packed rows of gate and of up.
    int32_t* columns(uint8_t* memory) const { return reinterpret_cast<int32_t*>(memory + columns_); }
    float* gathered(uint8_t* memory) const { return reinterpret_cast<float*>(memory + gathered_); }
    uint8_t* gate_input(uint8_t* memory) const { return memory + input_; }
    uint8_t* up_input(uint8_t* memory) const { return memory + input_ + kExpertTokens * input_stride_; }
    size_t input_stride() const { return input_stride_; }

private:
    size_t hidden_;
    size_t packed_;
    size_t packed_stride_;
    size_t columns_;
    size_t gathered_;
    size_t input_;
    size_t input_stride_;
    size_t bytes_;
};

// The rows of x that tokens [0, tokens) stand for (index[t], or t), in the order of a matrix that has one (`order`
// present), packed to rows of `out`, `stride` bytes apart.
void pack_in_order(const Machine& machine, const ExpertRecord& expert, const RecordField& order, const Buffer& x,
                   const int32_t* index, int tokens, uint8_t* scratch, uint8_t* out, size_t stride);

// What the tokens of an expert read: rows packed once for all experts, or, by an expert with orders, plain ones.
struct ExpertInput {
    Activations packed;
    const Buffer* plain;
    const int32_t* tokens;  // the row of each
};

// All of an expert for `tokens` rows of x, to rows of `out`.
void run_expert(const Machine& machine, const Glu& glu, const ExpertRecord& expert, const ExpertInput& x, int tokens,
                uint8_t* scratch, float* out, size_t stride);

}  // namespace freetoken
