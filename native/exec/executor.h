// Runs a compiled program on the pool, one step a call.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "exec/batch_check.h"
#include "exec/builder.h"
#include "exec/context_store.h"
#include "exec/program.h"
#include "pool/pool.h"

namespace freetoken {

struct Counters {
    int64_t steps = 0;
    int64_t experts_run = 0;
    int64_t expert_bytes = 0;
    double expert_seconds = 0;
    double dense_seconds = 0;
    double attention_seconds = 0;
};

class Executor final : private Job {
public:
    // Borrows the memory that `model` points to. Throws ProgramError.
    Executor(const ModelSpec& model, const Settings& settings, const Kernels& kernels, const Operations& operations,
             std::vector<int> cpus);

    // Runs the operations [first, last) on a batch and writes [rows][vocab] values to `logits`, where the last
    // operation fills them. Throws std::invalid_argument for a batch that does not fit, and changes nothing then.
    void step(const BatchView& batch, size_t first, size_t last, float* logits);

    // A buffer as the last step left it, of max_tokens() rows. Throws ProgramError.
    const Buffer& buffer(const std::string& name) const;

    size_t operations() const { return operations_.size(); }
    int vocab() const { return output_->width; }
    int max_tokens() const { return settings_.max_tokens; }
    int threads() const { return pool_.size(); }
    ContextStore& context() { return context_; }
    const ContextStore& context() const { return context_; }
    Counters counters() const;
    Routing& routing() { return storage_.routing; }
    const Routing& routing() const { return storage_.routing; }

private:
    void compile(const ModelSpec& model);
    BatchLimits limits() const;
    bool rotates(size_t first, size_t last) const;
    Phase next(int thread) override;
    void run(TaskRange tasks, int thread) override;
    uint8_t* scratch(int thread) const { return scratch_.data() + static_cast<size_t>(thread) * scratch_stride_; }
    void charge(Clock clock);

    const Settings settings_;
    Pool pool_;
    const Machine machine_;
    ContextStore context_;
    Storage storage_;
    std::unique_ptr<Operation> angles_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::vector<size_t> rotations_;  // operations that read angles, ascending
    Buffer* output_ = nullptr;
    int embed_rows_ = 0;  // token ids are below it
    Mapping scratch_;
    size_t scratch_stride_ = 0;

    // The step under way.
    Step step_;
    size_t next_ = 0;
    size_t last_ = 0;
    int phase_ = 0;  // phases of `current_` that have been prepared
    Operation* current_ = nullptr;
    std::chrono::steady_clock::time_point charged_until_;
    Counters counters_;
};

}  // namespace freetoken
