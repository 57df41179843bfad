#include "exec/executor.h"

#include <algorithm>
#include <utility>

namespace freetoken {
namespace {

// Lends the caller's array to the output buffer for the time of a step.
class OutputLoan {
public:
    OutputLoan(Buffer& output, float* data) : output_(output) { output_.data = data; }
    ~OutputLoan() { output_.data = nullptr; }
    OutputLoan(const OutputLoan&) = delete;
    OutputLoan& operator=(const OutputLoan&) = delete;

private:
    Buffer& output_;
};

}  // namespace

Executor::Executor(const ModelSpec& model, const Settings& settings, const Kernels& kernels,
                   const Operations& operations, std::vector<int> cpus)
    : settings_(settings),
      pool_(std::move(cpus)),
      machine_{&kernels, &operations, pool_.size()},
      context_(model.program, settings) {
    if (settings.max_tokens <= 0) throw ProgramError("a step must have room for at least one token");
    compile(model);
}

void Executor::compile(const ModelSpec& model) {
    Builder builder(model, settings_, machine_, context_, storage_);
    angles_ = make_angles(builder);
    for (size_t i = 0; i < model.program.ops.size(); ++i) {
        const OpSpec& spec = model.program.ops[i];
        operations_.push_back(make_operation(builder, spec, i));
        scratch_stride_ = std::max(scratch_stride_, operations_.back()->scratch_bytes());
        if (spec.kind == "rope") rotations_.push_back(i);
        if (spec.kind != "embed") continue;
        const int rows = builder.weight(spec.weights[0]).rows;
        embed_rows_ = embed_rows_ == 0 ? rows : std::min(embed_rows_, rows);
    }
    const auto output = storage_.buffers.find(model.program.output);
    if (output == storage_.buffers.end()) throw ProgramError("there is no output buffer " + model.program.output);
    output_ = &output->second;
    if (output_->root != output_->name || !output_->per_row || output_->integers)
        throw ProgramError("the output " + output_->name + " must be a buffer of its own, one row a wanted logit");
    scratch_stride_ = (scratch_stride_ + 4095) / 4096 * 4096;
    scratch_ = Mapping(scratch_stride_ * static_cast<size_t>(machine_.threads));
}

const Buffer& Executor::buffer(const std::string& name) const {
    const auto found = storage_.buffers.find(name);
    if (found == storage_.buffers.end()) throw ProgramError("there is no buffer " + name);
    if (found->second.data == nullptr) throw ProgramError("the output is kept by the caller of the step alone");
    return found->second;
}

Counters Executor::counters() const {
    Counters result = counters_;
    result.experts_run = storage_.experts.experts;
    result.expert_bytes = storage_.experts.bytes;
    return result;
}

BatchLimits Executor::limits() const {
    return {settings_.max_tokens,
            std::min(embed_rows_, storage_.token_rows),
            settings_.page_tokens,
            context_.room(),
            context_.cache().uses(PageGroup::whole),
            context_.states().states() > 0,
            storage_.window_sights};
}

bool Executor::rotates(size_t first, size_t last) const {
    const auto next = std::lower_bound(rotations_.begin(), rotations_.end(), first);
    return next != rotations_.end() && *next < last;
}

void Executor::step(const BatchView& batch, size_t first, size_t last, float* logits) {
    if (first > last || last > operations_.size())
        throw std::invalid_argument("operations " + std::to_string(first) + " to " + std::to_string(last) + " of " +
                                    std::to_string(operations_.size()));
    step_ = checked_step(batch, limits());
    storage_.routing.begin(step_.tokens);
    if (step_.tokens == 0 || first == last) return;
    const OutputLoan loan(*output_, logits);
    next_ = first;
    last_ = last;
    phase_ = 0;
    current_ = rotates(first, last) ? angles_.get() : operations_[next_++].get();
    charged_until_ = std::chrono::steady_clock::now();
    pool_.run(*this);
    ++counters_.steps;
}

void Executor::run(TaskRange tasks, int thread) {
    current_->run(phase_ - 1, step_, tasks, scratch(thread));
}

// Goes on to the next phase that needs all threads. Small ones it runs by itself, which costs less than to wake the
// others.
Phase Executor::next(int thread) {
    if (phase_ > 0) charge(current_->clock);
    while (true) {
        while (phase_ == current_->phases()) {
            if (next_ == last_) return {};
            current_ = operations_[next_++].get();
            phase_ = 0;
        }
        const int phase = phase_++;
        const Work work = current_->prepare(phase, step_);
        if (work.phase.count == 0) continue;
        if (machine_.threads > 1 && work.cost > settings_.serial_cost) return work.phase;
        current_->run(phase, step_, {0, work.phase.count}, scratch(thread));
        charge(current_->clock);
    }
}

void Executor::charge(Clock clock) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - charged_until_).count();
    charged_until_ = now;
    if (clock == Clock::experts)
        counters_.expert_seconds += seconds;
    else if (clock == Clock::attention)
        counters_.attention_seconds += seconds;
    else
        counters_.dense_seconds += seconds;
}

}  // namespace freetoken
