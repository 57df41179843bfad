// Attention: appends keys and values to the cache, then attends block by block.
#include <algorithm>

#include "exec/builder.h"

namespace freetoken {
namespace {

// Values of one block that are attended together: half of a second cache of 512 KiB, which most processors have.
constexpr size_t kValueBytes = size_t{256} << 10;

struct Shape {
    int cache = 0;
    int heads = 0;
    int kv_heads = 0;
    AttentionShape kernel;
    const float* sinks = nullptr;
    int sets = 0;   // selections of a token, each for as many heads as the others; 0: all that is in sight is seen
    int top_k = 0;  // numbers of one selection
};

// Some consecutive queries of a sequence and some heads of one kv head, or one query and all heads of some kv heads:
// what is attended together.
struct Span {
    const Sequence* sequence = nullptr;
    int token = 0;  // in the batch
    int queries = 0;
    int head = 0;  // the first query head
    int heads = 0;
    int kv_heads = 1;
    int block_begin = 0;  // blocks that any of the queries sees
    int block_end = 0;
    size_t first_part = 0;            // of its blocks' parts, where blocks are shared out
    const int32_t* chosen = nullptr;  // of a query that sees a selection
    int chosen_entries = 0;

    int rows() const { return queries * heads; }
    int blocks() const { return block_end - block_begin; }
};

// Tokens of a sequence, counted within it.
struct Tokens {
    int begin;
    int end;
};

class Attention final : public Operation {
public:
    Attention(const Machine& machine, KvCache& cache, const Shape& shape, const Buffer& q, const Buffer* k,
              const Buffer* v, const Buffer* chosen, const Buffer& o, Mapping& parts)
        : Operation(Clock::attention),
          machine_(machine),
          cache_(cache),
          shape_(shape),
          q_(q),
          k_(k),
          v_(v),
          chosen_(chosen),
          o_(o),
          parts_(parts) {}

    // Append; attend; and where the blocks of a span were shared out, merge them.
    int phases() const override { return 3; }

    size_t scratch_bytes() const override {
        const size_t kernel = (machine_.operations->attention_scratch(shape_.kernel) + 15) / 16 * 16;
        return (kernel + 2 * part_values()) * sizeof(float);
    }

    Work prepare(int phase, const Step& step) override {
        const int64_t token_values = int64_t{shape_.kv_heads} * (shape_.kernel.k_dim + shape_.kernel.v_dim);
        switch (phase) {
            case 0:
                return {{k_ == nullptr ? 0 : static_cast<uint32_t>(step.tokens), 4}, step.tokens * token_values};
            case 1:
                return plan(step);
            default:
                return {{shared_out_ ? static_cast<uint32_t>(spans_.size()) * kMerges : 0}, merge_cost()};
        }
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        auto* memory = reinterpret_cast<float*>(scratch);
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
            if (phase == 0)
                append(step, static_cast<int>(task));
            else if (phase == 2)
                merge(spans_[task / kMerges], static_cast<int>(task % kMerges), memory);
            else if (shared_out_)
                attend_one_block(task, memory);
            else
                attend(spans_[task], memory);
        }
    }

private:
    size_t v_stride() const { return static_cast<size_t>(shape_.kernel.v_stride); }
    // Values of one part: m and l of all rows, then their sums.
    size_t part_values() const { return kAttentionRows * (2 + v_stride()); }
    int group() const { return shape_.heads / shape_.kv_heads; }
    const int32_t* pages_of(const Sequence& sequence) const {
        return cache_.layer(shape_.cache).group == PageGroup::window ? sequence.windows : sequence.pages;
    }

    AttentionPart part_at(float* memory) const {
        return {memory, memory + kAttentionRows, memory + 2 * kAttentionRows};
    }

    // The sequence of a token is found from its position: the tasks of this phase are tokens of all sequences.
    void append(const Step& step, int token) {
        const auto next = std::upper_bound(step.sequences.begin(), step.sequences.end(), token,
                                           [](int value, const Sequence& s) { return value < s.begin; });
        const Sequence& sequence = *(next - 1);
        const int position = step.positions[token];
        const KvCache::Layer& layer = cache_.layer(shape_.cache);
        const int page = pages_of(sequence)[position / cache_.page_tokens()];
        const auto slot = static_cast<size_t>(position % cache_.page_tokens());
        for (int head = 0; head < shape_.kv_heads; ++head) {
            store_keys(layer, k_->row(token) + head * layer.k_dim, layer.keys(head, page), slot);
            if (v_ == nullptr) continue;
            const size_t v_row = static_cast<size_t>(layer.v_stride) * cache_.value_bytes();
            machine_.operations->store_cached(v_->row(token) + head * layer.v_dim, layer.v_dim, layer.v_stride,
                                              cache_.half(), layer.values(head, page) + slot * v_row);
        }
    }

    void store_keys(const KvCache::Layer& layer, const float* key, uint8_t* page, size_t slot) const {
        const size_t row = static_cast<size_t>(layer.k_stride) * cache_.value_bytes();
        if (layer.latent()) {
            machine_.operations->store_cached(key, layer.k_dim, layer.k_stride, cache_.half(), page + slot * row);
            return;
        }
        const size_t sixteen = slot / 16 * 16 * row;
        machine_.operations->store_key(key, layer.k_dim, layer.k_stride, cache_.half(),
                                       page + sixteen + slot % 16 * cache_.value_bytes());
    }

    // So many give each thread its share.
    size_t wanted_tasks() const { return 4 * static_cast<size_t>(machine_.threads); }

    // Cuts the batch into spans; where there are too few for the threads, each block of each span is a task.
    Work plan(const Step& step) {
        spans_.clear();
        cost_ = 0;
        blocks_ = 0;
        const int together = kv_heads_together(step);
        for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
            for (const Sequence& sequence : step.sequences) {
                const int whole = tokens_that_see_all(sequence);
                if (whole == 1 && sequence.tokens == 1 && group() <= kAttentionRows) {
                    if (kv_head % together == 0)
                        add_span(sequence, kv_head, std::min(together, shape_.kv_heads - kv_head));
                    continue;
                }
                add_spans(sequence, kv_head, {0, whole}, false);
                add_spans(sequence, kv_head, {whole, sequence.tokens}, true);
            }
        }
        shared_out_ = machine_.threads > 1 && spans_.size() < wanted_tasks() && blocks_ > spans_.size();
        if (!shared_out_) return {{static_cast<uint32_t>(spans_.size())}, cost_ * shape_.kernel.k_dim / 4};
        parts_.reserve(blocks_ * part_values() * sizeof(float));
        return {{static_cast<uint32_t>(blocks_)}, cost_ * shape_.kernel.k_dim / 4};
    }

    // How many of a sequence's first tokens see so little that all of it was chosen: they need no selection. A selection
    // with a tail names one number less where a token completes the last run.
    int tokens_that_see_all(const Sequence& sequence) const {
        if (chosen_ == nullptr) return sequence.tokens;
        const int64_t seen = int64_t{shape_.top_k} * shape_.kernel.chosen_run - 1 - sequence.position;
        return static_cast<int>(std::clamp<int64_t>(seen, 0, sequence.tokens));
    }

    // How many kv heads of a single token are attended page by page: a block's values must stay in the second cache
    // from its first key to its last, and the threads must not run out of tasks.
    int kv_heads_together(const Step& step) const {
        const size_t values = size_t{kAttentionBlock} * v_stride() * cache_.value_bytes();
        int together = std::clamp(static_cast<int>(kValueBytes / values), 1, shape_.kv_heads);
        together = std::clamp(kAttentionRows / group(), 1, together);
        size_t blocks = 0;
        for (const Sequence& sequence : step.sequences)
            blocks += static_cast<size_t>(sequence.position) / kAttentionBlock + 1;
        while (together > 1 && blocks * static_cast<size_t>(shape_.kv_heads / together) < wanted_tasks()) together /= 2;
        return together;
    }

    void add_span(const Sequence& sequence, int kv_head, int kv_heads) {
        Span span = make_span(sequence, 0, 1);
        span.head = kv_head * group();
        span.heads = kv_heads * group();
        span.kv_heads = kv_heads;
        add(span);
    }

    void add(Span& span) {
        span.first_part = blocks_;
        blocks_ += static_cast<size_t>(span.blocks());
        cost_ += int64_t{span.rows()} * span.blocks() * kAttentionBlock;
        spans_.push_back(span);
    }

    // Tokens with selections of their own share no reading, so each is a span with as many heads as there is room for.
    void add_spans(const Sequence& sequence, int kv_head, Tokens tokens, bool selects) {
        const int heads = std::min(group(), selects ? kAttentionRows : kAttentionRows / 2);
        const int queries = selects ? 1 : kAttentionRows / heads;
        for (int token = tokens.begin; token < tokens.end; token += queries) {
            for (int head = 0; head < group(); head += heads) {
                Span span = make_span(sequence, token, std::min(queries, tokens.end - token));
                span.head = kv_head * group() + head;
                span.heads = std::min(heads, group() - head);
                if (selects) select(span);
                add(span);
            }
        }
    }

    // Blocks of a selection are counted by places in it. Only the run that the token itself is in may end early.
    void select(Span& span) const {
        const int run = shape_.kernel.chosen_run;
        const int position = span.sequence->position + span.token - span.sequence->begin;
        span.chosen = chosen_->int_row(span.token) + span.head / (shape_.heads / shape_.sets) * shape_.top_k;
        const int last = span.chosen[shape_.top_k - 1];  // -1: there is one number less
        span.chosen_entries = (shape_.top_k - 1) * run + (last == position / run ? position % run + 1 : last < 0 ? 0 : run);
        span.block_begin = 0;
        span.block_end = (span.chosen_entries + kAttentionBlock - 1) / kAttentionBlock;
    }

    Span make_span(const Sequence& sequence, int token, int queries) const {
        const int first = sequence.position + token;
        Span span;
        span.sequence = &sequence;
        span.token = sequence.begin + token;
        span.queries = queries;
        span.block_begin = shape_.kernel.sight.oldest(first) / kAttentionBlock;
        span.block_end = (first + queries - 1) / kAttentionBlock + 1;
        return span;
    }

    int64_t merge_cost() const {
        int64_t cost = 0;
        for (const Span& span : spans_) cost += int64_t{span.rows()} * span.blocks() * shape_.kernel.v_stride;
        return cost;
    }

    AttentionSpan kernel_span(const Span& span) const {
        const KvCache::Layer& layer = cache_.layer(shape_.cache);
        const int kv_head = span.head / group();
        AttentionSpan result;
        result.q = q_.row(span.token) + span.head * shape_.kernel.k_dim;
        result.q_stride = q_.stride;
        result.queries = span.queries;
        result.heads = span.heads;
        result.kv_heads = span.kv_heads;
        result.position = span.sequence->position + span.token - span.sequence->begin;
        result.k = layer.keys(kv_head, 0);
        result.v = layer.values(kv_head, 0);
        result.pages = pages_of(*span.sequence);
        result.chosen = span.chosen;
        result.chosen_entries = span.chosen_entries;
        return result;
    }

    void attend_one_block(uint32_t task, float* scratch) {
        const auto next = std::upper_bound(spans_.begin(), spans_.end(), size_t{task},
                                           [](size_t value, const Span& s) { return value < s.first_part; });
        const Span& span = *(next - 1);
        const int block = span.block_begin + static_cast<int>(task - span.first_part);
        machine_.operations->attend_block(shape_.kernel, kernel_span(span), block, scratch,
                                          part_at(parts_.floats() + task * part_values()));
    }

    void attend(const Span& span, float* scratch) {
        float* memory = scratch + (machine_.operations->attention_scratch(shape_.kernel) + 15) / 16 * 16;
        const AttentionPart sum = part_at(memory);
        std::fill_n(sum.l, span.rows(), -1.0f);
        const AttentionPart part = part_at(memory + part_values());
        const AttentionSpan where = kernel_span(span);
        for (int block = span.block_begin; block < span.block_end; ++block) {
            machine_.operations->attend_block(shape_.kernel, where, block, scratch, part);
            machine_.operations->merge_attention(span.rows(), shape_.kernel.v_stride, part, sum);
        }
        finish(span, 0, span.rows(), sum);
    }

    // The rows of a span are merged in so many tasks.
    static constexpr int kMerges = 4;

    void merge(const Span& span, int share, float* scratch) {
        const int begin = span.rows() * share / kMerges;
        const int rows = span.rows() * (share + 1) / kMerges - begin;
        const AttentionPart sum = part_at(scratch);
        std::fill_n(sum.l, rows, -1.0f);
        for (int block = 0; block < span.blocks(); ++block) {
            float* memory = parts_.floats() + (span.first_part + static_cast<size_t>(block)) * part_values();
            const AttentionPart part = part_at(memory);
            const size_t at = static_cast<size_t>(begin);
            machine_.operations->merge_attention(rows, shape_.kernel.v_stride,
                                                 {part.m + at, part.l + at, part.o + at * v_stride()}, sum);
        }
        finish(span, begin, rows, sum);
    }

    // Rows [begin, begin + rows) of a span, which lie at the beginning of `sum`.
    void finish(const Span& span, int begin, int rows, const AttentionPart& sum) const {
        for (int i = 0; i < rows; ++i) {
            const int row = begin + i;
            const int head = span.head + row % span.heads;
            machine_.operations->finish_attention(shape_.sinks == nullptr ? nullptr : shape_.sinks + head, sum.m[i],
                                                  sum.l[i], sum.o + static_cast<size_t>(i) * v_stride(),
                                                  shape_.kernel.v_dim,
                                                  o_.row(span.token + row / span.heads) + head * shape_.kernel.v_dim);
        }
    }

    const Machine machine_;
    KvCache& cache_;
    const Shape shape_;
    const Buffer& q_;
    const Buffer* k_;  // null: keys and values of the step are in the cache
    const Buffer* v_;
    const Buffer* chosen_;
    const Buffer& o_;
    std::vector<Span> spans_;
    int64_t cost_ = 0;   // of all of them
    size_t blocks_ = 0;  // of all of them
    bool shared_out_ = false;
    Mapping& parts_;
};

}  // namespace

std::unique_ptr<Operation> make_attention(const OpReader& op) {
    op.arity(1, 1, 1, 3);
    KvCache& cache = op.builder.cache();
    const Buffer& q = op.read(0);
    const Buffer* k = op.has_read(1) ? &op.read(1) : nullptr;
    const Buffer* v = op.has_read(2) ? &op.read(2) : nullptr;
    const Buffer* chosen = op.has_read(3) ? &op.read(3) : nullptr;
    const Buffer& o = op.write(0);
    Shape shape;
    shape.cache = op.integer("cache");
    op.require(shape.cache < cache.layers(), "there is no cache " + std::to_string(shape.cache));
    const KvCache::Layer& layer = cache.layer(shape.cache);
    shape.heads = op.integer("heads");
    shape.kv_heads = op.integer("kv_heads");
    shape.sinks = op.optional_vector(0, shape.heads);
    AttentionShape& kernel = shape.kernel;
    kernel.k_dim = op.integer("k_dim");
    kernel.v_dim = op.integer("v_dim");
    kernel.scale = op.real("scale");
    kernel.softcap = op.real("softcap");
    kernel.sight = {op.integer("window"), op.integer("chunk")};
    op.require(shape.kv_heads == layer.kv_heads && kernel.k_dim == layer.k_dim, "does not fit its cache");
    op.require(layer.v_dim == 0 ? kernel.v_dim <= kernel.k_dim : layer.v_dim == kernel.v_dim,
               "its values do not fit its cache");
    op.require(k == nullptr || (v == nullptr) == (layer.v_dim == 0), "keeps other things than its cache");
    op.require(kernel.v_dim > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
               "the kv heads do not divide the heads");
    op.width(q, int64_t{shape.heads} * kernel.k_dim);
    if (k != nullptr) op.width(*k, int64_t{shape.kv_heads} * kernel.k_dim);
    if (v != nullptr) op.width(*v, int64_t{shape.kv_heads} * kernel.v_dim);
    op.width(o, int64_t{shape.heads} * kernel.v_dim);
    for (const Buffer* buffer : {&q, k, v, &o})
        op.require(buffer == nullptr || !buffer->per_row, "works on one row a token");
    if (chosen != nullptr) {
        shape.sets = op.integer("sets");
        kernel.chosen_run = op.integer("block");
        op.require(shape.sets == 1 || shape.sets == shape.kv_heads, "has selections for no whole kv heads");
        op.require(chosen->integers && !chosen->per_row && chosen->width % shape.sets == 0, "cannot read a selection");
        op.require(kernel.sight.window == 0 && kernel.sight.chunk == 0, "has a selection and a bound of sight");
        op.require(kernel.chosen_run > 0 && (layer.latent() || kernel.chosen_run % kTileRows == 0),
                   "needs selections of blocks of a multiple of 16 positions");
        shape.top_k = chosen->width / shape.sets;
    }
    if (layer.group == PageGroup::window) op.builder.storage().window_sights.push_back(kernel.sight);
    kernel.k_stride = layer.k_stride;
    kernel.v_stride = (kernel.v_dim + kTileRows - 1) / kTileRows * kTileRows;
    op.require(layer.every == 1, "looks for a key of every token in a cache that has fewer");
    kernel.page_tokens = cache.page_tokens();
    kernel.page_bytes = layer.page_bytes;
    kernel.k_head_bytes = layer.k_bytes;
    kernel.v_head_bytes = layer.v_bytes;
    kernel.half = cache.half();
    kernel.latent = layer.latent();
    return std::make_unique<Attention>(op.builder.machine(), cache, shape, q, k, v, chosen, o,
                                       op.builder.storage().workspace.attention_parts);
}

}  // namespace freetoken
