// Attention: appends keys and values to the cache, then attends block by block.
#include <algorithm>

#include "exec/builder.h"

namespace freetoken {
namespace {

struct Shape {
    int cache = 0;
    int heads = 0;
    int kv_heads = 0;
    AttentionShape kernel;
    const float* sinks = nullptr;
};

// Some consecutive queries of a sequence and some heads of one kv head: what is attended together.
struct Span {
    const Sequence* sequence = nullptr;
    int token = 0;  // in the batch
    int queries = 0;
    int head = 0;  // the first query head
    int heads = 0;
    int block_begin = 0;  // blocks that any of the queries sees
    int block_end = 0;
    size_t first_part = 0;  // of its blocks' parts, where blocks are shared out

    int rows() const { return queries * heads; }
    int blocks() const { return block_end - block_begin; }
};

class Attention final : public Operation {
public:
    Attention(const Machine& machine, KvCache& cache, const Shape& shape, const Buffer& q, const Buffer* k,
              const Buffer* v, const Buffer& o, Mapping& parts)
        : Operation(Clock::attention),
          machine_(machine),
          cache_(cache),
          shape_(shape),
          q_(q),
          k_(k),
          v_(v),
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
                return {{shared_out_ ? static_cast<uint32_t>(spans_.size()) : 0}, merge_cost()};
        }
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        auto* memory = reinterpret_cast<float*>(scratch);
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
            if (phase == 0)
                append(step, static_cast<int>(task));
            else if (phase == 2)
                merge(spans_[task], memory);
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

    // Cuts the batch into spans; where there are too few for the threads, each block of each span is a task.
    Work plan(const Step& step) {
        spans_.clear();
        const int heads = std::min(group(), kAttentionRows / 2);
        const int queries = kAttentionRows / heads;
        int64_t cost = 0;
        size_t blocks = 0;
        for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
            for (const Sequence& sequence : step.sequences) {
                for (int token = 0; token < sequence.tokens; token += queries) {
                    for (int head = 0; head < group(); head += heads) {
                        Span span = make_span(sequence, token, std::min(queries, sequence.tokens - token));
                        span.head = kv_head * group() + head;
                        span.heads = std::min(heads, group() - head);
                        span.first_part = blocks;
                        blocks += static_cast<size_t>(span.blocks());
                        cost += int64_t{span.rows()} * span.blocks() * kAttentionBlock;
                        spans_.push_back(span);
                    }
                }
            }
        }
        const size_t wanted = 4 * static_cast<size_t>(machine_.threads);
        shared_out_ = machine_.threads > 1 && spans_.size() < wanted && blocks > spans_.size();
        if (!shared_out_) return {{static_cast<uint32_t>(spans_.size())}, cost * shape_.kernel.k_dim / 4};
        parts_.reserve(blocks * part_values() * sizeof(float));
        return {{static_cast<uint32_t>(blocks)}, cost * shape_.kernel.k_dim / 4};
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
        result.position = span.sequence->position + span.token - span.sequence->begin;
        result.k = layer.keys(kv_head, 0);
        result.v = layer.values(kv_head, 0);
        result.pages = pages_of(*span.sequence);
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
        const AttentionPart sum = empty_sum(span, memory);
        const AttentionPart part = part_at(memory + part_values());
        const AttentionSpan where = kernel_span(span);
        for (int block = span.block_begin; block < span.block_end; ++block) {
            machine_.operations->attend_block(shape_.kernel, where, block, scratch, part);
            machine_.operations->merge_attention(span.rows(), shape_.kernel.v_stride, part, sum);
        }
        finish(span, sum);
    }

    void merge(const Span& span, float* scratch) {
        const AttentionPart sum = empty_sum(span, scratch);
        for (int block = 0; block < span.blocks(); ++block) {
            float* part = parts_.floats() + (span.first_part + static_cast<size_t>(block)) * part_values();
            machine_.operations->merge_attention(span.rows(), shape_.kernel.v_stride, part_at(part), sum);
        }
        finish(span, sum);
    }

    AttentionPart empty_sum(const Span& span, float* memory) const {
        const AttentionPart sum = part_at(memory);
        std::fill_n(sum.l, span.rows(), -1.0f);
        return sum;
    }

    void finish(const Span& span, const AttentionPart& sum) const {
        for (int row = 0; row < span.rows(); ++row) {
            const int head = span.head + row % span.heads;
            machine_.operations->finish_attention(shape_.sinks == nullptr ? nullptr : shape_.sinks + head, sum.m[row],
                                                  sum.l[row], sum.o + static_cast<size_t>(row) * v_stride(),
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
    const Buffer& o_;
    std::vector<Span> spans_;
    bool shared_out_ = false;
    Mapping& parts_;
};

}  // namespace

std::unique_ptr<Operation> make_attention(const OpReader& op) {
    op.arity(1, 1, 1, 2);
    KvCache& cache = op.builder.cache();
    const Buffer& q = op.read(0);
    const Buffer* k = op.has_read(1) ? &op.read(1) : nullptr;
    const Buffer* v = op.has_read(2) ? &op.read(2) : nullptr;
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
    if (layer.group == PageGroup::window) op.builder.storage().window_sights.push_back(kernel.sight);
    kernel.k_stride = layer.k_stride;
    kernel.v_stride = (kernel.v_dim + kTileRows - 1) / kTileRows * kTileRows;
    kernel.page_tokens = cache.page_tokens();
    kernel.page_bytes = layer.page_bytes;
    kernel.half = cache.half();
    kernel.latent = layer.latent();
    return std::make_unique<Attention>(op.builder.machine(), cache, shape, q, k, v, o,
                                       op.builder.storage().workspace.attention_parts);
}

}  // namespace freetoken
