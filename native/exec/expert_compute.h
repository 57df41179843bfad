// What one expert does with some tokens.
#pragma once

#include "exec/storage.h"

namespace freetoken {

// Tokens that one expert treats at a time: their rows and its weights stay in the second-level cache.
inline constexpr int kExpertTokens = 64;

// Bytes of one row of gate and up, 16 values of each in turn, or one after the other where they are stored apart.
size_t gate_up_stride(const RecordLayout& layout);

// Tiles of gate and up, in order of memory: of gate_up in pairs, else of gate and then of up. A task never parts a
// pair.
int gate_up_tasks(const RecordLayout& layout);
int64_t gate_up_task_bytes(const RecordLayout& layout);

// The part of the rows of `out` (`stride` values apart, at least gate_up_stride) that the tasks [begin, end) cover.
void multiply_gate_up(const Machine& machine, const ExpertRecord& expert, int begin, int end, const Activations& x,
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

    size_t bytes() const { return packed_ + kExpertTokens * packed_stride_; }
    float* gate_up(uint8_t* memory) const { return reinterpret_cast<float*>(memory); }
    float* hidden(uint8_t* memory) const { return reinterpret_cast<float*>(memory + hidden_); }
    uint8_t* packed(uint8_t* memory) const { return memory + packed_; }
    size_t packed_stride() const { return packed_stride_; }

private:
    size_t hidden_;
    size_t packed_;
    size_t packed_stride_;
};

// All of an expert for `tokens` rows of x (by x.index), to rows of `out`.
void run_expert(const Machine& machine, const Glu& glu, const ExpertRecord& expert, const Activations& x, int tokens,
                uint8_t* scratch, float* out, size_t stride);

}  // namespace freetoken
