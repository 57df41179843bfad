#include "exec/executor.h"

#include <algorithm>
#include <utility>

namespace freetoken {
namespace {

std::string text(int64_t n) {
    return std::to_string(n);
}

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
      cache_(model.program.caches, settings.page_tokens, settings.half_kv, settings.kv_pages) {
    if (settings.max_tokens <= 0) throw ProgramError("a step must have room for at least one token");
    compile(model);
}

void Executor::compile(const ModelSpec& model) {
    Builder builder(model, settings_, machine_, cache_, storage_);
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

void Executor::check_sequence(const BatchView& batch, size_t index) const {
    const int begin = batch.seq_starts[index];
    const int end = batch.seq_starts[index + 1];
    const std::string name = "sequence " + std::to_string(index);
    if (begin < 0 || end < begin || end > static_cast<int>(batch.tokens.size()))
        throw std::invalid_argument(name + " has bounds " + text(begin) + " and " + text(end));
    if (begin == end) return;
    const auto at = [&](int token) { return batch.positions[static_cast<size_t>(token)]; };
    if (at(begin) < 0) throw std::invalid_argument(name + " starts at position " + text(at(begin)));
    for (int token = begin + 1; token < end; ++token) {
        if (at(token) != at(token - 1) + 1) throw std::invalid_argument(name + " has a gap in its positions");
    }
    const auto pages = static_cast<size_t>(at(end - 1) / cache_.page_tokens() + 1);
    const auto table = batch.page_tables[index];
    if (table.size() < pages)
        throw std::invalid_argument(name + " needs " + std::to_string(pages) + " pages and has " +
                                    std::to_string(table.size()));
    for (size_t i = 0; i < pages; ++i) {
        if (table[i] < 0 || table[i] >= cache_.pages())
            throw std::invalid_argument(name + " uses page " + text(table[i]) + " of " + text(cache_.pages()));
    }
}

Step Executor::checked(const BatchView& batch) const {
    const size_t tokens = batch.tokens.size();
    if (tokens > static_cast<size_t>(settings_.max_tokens) || batch.rows.size() > tokens)
        throw std::invalid_argument("a step of " + std::to_string(tokens) + " tokens and " +
                                    std::to_string(batch.rows.size()) + " rows; there is room for " +
                                    text(settings_.max_tokens) + " tokens");
    const auto& starts = batch.seq_starts;
    if (batch.positions.size() != tokens || starts.size() != batch.page_tables.size() + 1 || starts.front() != 0 ||
        starts.back() != static_cast<int>(tokens))
        throw std::invalid_argument("the parts of the batch do not fit together");
    for (const int32_t token : batch.tokens) {
        if (token < 0 || token >= embed_rows_)
            throw std::invalid_argument("token " + text(token) + " of a vocabulary of " + text(embed_rows_));
    }
    for (const int32_t row : batch.rows) {
        if (row < 0 || row >= static_cast<int>(tokens)) throw std::invalid_argument("logits of token " + text(row));
    }
    Step step;
    step.tokens = static_cast<int>(tokens);
    step.rows = static_cast<int>(batch.rows.size());
    step.ids = batch.tokens.data();
    step.positions = batch.positions.data();
    step.row_tokens = batch.rows.data();
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
        check_sequence(batch, i);
        if (starts[i] == starts[i + 1]) continue;
        step.sequences.push_back({starts[i], starts[i + 1] - starts[i], batch.positions[static_cast<size_t>(starts[i])],
                                  batch.page_tables[i].data()});
    }
    return step;
}

bool Executor::rotates(size_t first, size_t last) const {
    const auto next = std::lower_bound(rotations_.begin(), rotations_.end(), first);
    return next != rotations_.end() && *next < last;
}

void Executor::step(const BatchView& batch, size_t first, size_t last, float* logits) {
    if (first > last || last > operations_.size())
        throw std::invalid_argument("operations " + std::to_string(first) + " to " + std::to_string(last) + " of " +
                                    std::to_string(operations_.size()));
    step_ = checked(batch);
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
