// What a compiled operation is, and the data that all of them share during a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "exec/memory.h"
#include "kernels/kernels.h"
#include "ops/ops.h"
#include "pool/tasks.h"

namespace freetoken {

// Tables of functions of the chosen instruction set, and how many threads there are.
struct Machine {
    const Kernels* kernels = nullptr;
    const Operations* operations = nullptr;
    int threads = 1;
};

// Consecutive positions of one sequence within a batch.
struct Sequence {
    int begin = 0;  // first token in the batch
    int tokens = 0;
    int position = 0;  // of the first token
    const int32_t* pages = nullptr;
    const int32_t* windows = nullptr;  // pages of caches with a reach; -1 behind everything that is still seen
    int state = -1;                    // its slot, of recurrent programs
};

// After the token goes the state of its sequence to the slot, besides its own.
struct Save {
    int token = 0;
    int slot = 0;
};

// One batch, checked. `rows` are the tokens whose logits are wanted.
struct Step {
    int tokens = 0;
    int rows = 0;
    const int32_t* ids = nullptr;
    const int32_t* positions = nullptr;
    const int32_t* row_tokens = nullptr;
    std::vector<Sequence> sequences;
    std::vector<Save> saves;  // ascending by token
};

// A buffer or a view of one: row i starts at data + i * stride.
struct Buffer {
    std::string name;
    std::string root;  // the buffer that owns the memory
    int width = 0;
    int offset = 0;  // within a row of the root
    bool per_row = false;
    bool integers = false;
    float* data = nullptr;
    size_t stride = 0;

    float* row(int i) const { return data + static_cast<size_t>(i) * stride; }
    int32_t* int_row(int i) const { return reinterpret_cast<int32_t*>(row(i)); }
    int rows(const Step& step) const { return per_row ? step.rows : step.tokens; }
};

// Rows of a buffer in the form that products read.
struct PackedRows {
    ActivationForm form = ActivationForm::f32;
    int cols = 0;
    size_t stride = 0;
    Mapping memory;

    PackedRows(const Kernels& kernels, ActivationForm wanted, int columns, size_t rows)
        : form(wanted), cols(columns), stride(kernels.activation_bytes(wanted, columns)), memory(stride * rows) {}

    uint8_t* row(size_t i) const { return memory.data() + i * stride; }
    void pack(const Kernels& kernels, const float* x, size_t i) const {
        kernels.pack_activations(form, x, cols, row(i));
    }
};

// What the time of a step is charged to.
enum class Clock : uint8_t { dense, attention, experts };

// What a phase has to do, and its cost in values touched: one thread does cheap phases alone.
struct Work {
    Phase phase;
    int64_t cost = 0;
};

inline constexpr int64_t kNeverAlone = int64_t{1} << 40;  // the cost of a phase that always pays to share

// One operation with its buffers and weights resolved, as a few phases. One thread calls `prepare` before each phase,
// alone; then all take tasks until none is left.
class Operation {
public:
    explicit Operation(Clock charged_to) : clock(charged_to) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    virtual int phases() const { return 1; }
    // Bytes of private memory that `run` needs, 64-byte aligned.
    virtual size_t scratch_bytes() const { return 0; }
    // No tasks: the phase is skipped.
    virtual Work prepare(int phase, const Step& step) = 0;
    virtual void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) = 0;

    const Clock clock;
};

// An operation that treats every row of a domain by itself.
class RowOperation final : public Operation {
public:
    using Body = std::function<void(const Step& step, int row)>;

    RowOperation(Clock charged_to, bool per_row, int64_t cost, Body body)
        : Operation(charged_to), per_row_(per_row), cost_(cost), body_(std::move(body)) {}

    Work prepare(int, const Step& step) override {
        const int rows = per_row_ ? step.rows : step.tokens;
        return {{static_cast<uint32_t>(rows), 4}, rows * cost_};
    }
    void run(int, const Step& step, TaskRange tasks, uint8_t*) override {
        for (uint32_t i = tasks.begin; i < tasks.end; ++i) body_(step, static_cast<int>(i));
    }

private:
    const bool per_row_;
    const int64_t cost_;  // of one row, in values touched
    const Body body_;
};

}  // namespace freetoken
