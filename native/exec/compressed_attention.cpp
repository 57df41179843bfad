// Attention to a window of positions and to entries that each stand for several tokens: one softmax over both.
#include <algorithm>
#include <numeric>
#include <vector>

#include "exec/builder.h"

namespace freetoken {
namespace {

struct Shape {
    int cache = 0;
    int entries = -1;  // the cache of entries; -1: the window is all there is
    int heads = 0;
    int top_k = 0;  // numbers of a selection; 0: every entry is seen that is complete
    AttentionShape window;
    AttentionShape beyond;
    const float* sinks = nullptr;
};

// Some heads of one query.
struct Span {
    const Sequence* sequence;
    int token;  // in the batch
    int head;
    int heads;
};

class CompressedAttention final : public Operation {
public:
    CompressedAttention(const Machine& machine, KvCache& cache, const Shape& shape, const Buffer& q, const Buffer& kv,
                        const Buffer* entry, const Buffer* chosen, const Buffer& o)
        : Operation(Clock::attention),
          machine_(machine),
          cache_(cache),
          shape_(shape),
          q_(q),
          kv_(kv),
          entry_(entry),
          chosen_(chosen),
          o_(o) {}

    int phases() const override { return 2; }

    size_t scratch_bytes() const override { return (parts_at() + 2 * part_values()) * sizeof(float); }

    Work prepare(int phase, const Step& step) override {
        if (phase == 0) return {{static_cast<uint32_t>(step.tokens), 4}, int64_t{step.tokens} * 2 * kv_.width};
        return plan(step);
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
            if (phase == 0)
                append(step, static_cast<int>(task));
            else
                attend(spans_[task], reinterpret_cast<float*>(scratch));
        }
    }

private:
    size_t v_stride() const { return static_cast<size_t>(shape_.window.v_stride); }
    size_t part_values() const { return kAttentionRows * (2 + v_stride()); }
    size_t parts_at() const {
        const size_t values = std::max(machine_.operations->attention_scratch(shape_.window),
                                       machine_.operations->attention_scratch(shape_.beyond));
        return (values + 15) / 16 * 16;
    }
    const int32_t* pages_of(const Sequence& sequence) const {
        return cache_.layer(shape_.cache).group == PageGroup::window ? sequence.windows : sequence.pages;
    }
    int entries_seen(int position) const { return shape_.entries < 0 ? 0 : (position + 1) / shape_.beyond.every; }

    // The sequence of a token is found from its position: the tasks of this phase are tokens of all sequences.
    void append(const Step& step, int token) {
        const auto next = std::upper_bound(step.sequences.begin(), step.sequences.end(), token,
                                           [](int value, const Sequence& s) { return value < s.begin; });
        const Sequence& sequence = *(next - 1);
        const int position = step.positions[token];
        store(shape_.cache, pages_of(sequence), position, kv_.row(token));
        if (entry_ != nullptr && (position + 1) % shape_.beyond.every == 0)
            store(shape_.entries, sequence.pages, position / shape_.beyond.every, entry_->row(token));
    }

    void store(int cache, const int32_t* pages, int entry, const float* values) {
        const KvCache::Layer& layer = cache_.layer(cache);
        const EntryPlace place = entry_place(entry, layer.every, cache_.page_tokens());
        const size_t row = static_cast<size_t>(layer.k_stride) * cache_.value_bytes();
        machine_.operations->store_cached(values, layer.k_dim, layer.k_stride, cache_.half(),
                                          layer.keys(0, pages[place.page]) + static_cast<size_t>(place.slot) * row);
    }

    // Queries share no reading, since each has a window and perhaps a selection of its own; their heads do, as far as
    // there are threads enough without.
    Work plan(const Step& step) {
        spans_.clear();
        const int together = std::clamp(step.tokens * shape_.heads / (2 * machine_.threads), 4, kAttentionRows);
        int64_t cost = 0;
        int most = 0;
        for (const Sequence& sequence : step.sequences) {
            for (int token = 0; token < sequence.tokens; ++token) {
                const int position = sequence.position + token;
                const int seen = entries_seen(position);
                most = std::max(most, seen);
                cost += std::min(position + 1, shape_.window.sight.window) + (chosen_ == nullptr ? seen : shape_.top_k);
                for (int head = 0; head < shape_.heads; head += together)
                    spans_.push_back(
                        {&sequence, sequence.begin + token, head, std::min(together, shape_.heads - head)});
            }
        }
        if (chosen_ == nullptr && static_cast<size_t>(most) > all_.size()) {
            all_.resize(static_cast<size_t>(most) * 2);
            std::iota(all_.begin(), all_.end(), 0);
        }
        return {{static_cast<uint32_t>(spans_.size())}, cost * shape_.heads * shape_.window.k_dim / 4};
    }

    void attend(const Span& span, float* scratch) {
        const AttentionPart sum = part_at(scratch + parts_at());
        const AttentionPart part = part_at(scratch + parts_at() + part_values());
        std::fill_n(sum.l, span.heads, -1.0f);
        const int position = span.sequence->position + span.token - span.sequence->begin;
        AttentionSpan where;
        where.q = q_.row(span.token) + static_cast<size_t>(span.head) * static_cast<size_t>(shape_.window.k_dim);
        where.q_stride = q_.stride;
        where.queries = 1;
        where.heads = span.heads;
        where.position = position;
        where.k = where.v = cache_.layer(shape_.cache).keys(0, 0);
        where.pages = pages_of(*span.sequence);
        const int first = shape_.window.sight.oldest(position) / kAttentionBlock;
        for (int block = first; block <= position / kAttentionBlock; ++block)
            add(shape_.window, where, block, scratch, part, sum);
        const int seen = entries_seen(position);
        if (seen > 0) {
            where.k = where.v = cache_.layer(shape_.entries).keys(0, 0);
            where.pages = span.sequence->pages;
            where.chosen = chosen_ == nullptr ? all_.data() : chosen_->int_row(span.token);
            where.chosen_entries = chosen_ == nullptr ? seen : std::min(seen, shape_.top_k);
            for (int block = 0; block * kAttentionBlock < where.chosen_entries; ++block)
                add(shape_.beyond, where, block, scratch, part, sum);
        }
        for (int row = 0; row < span.heads; ++row) {
            const int head = span.head + row;
            machine_.operations->finish_attention(
                shape_.sinks + head, sum.m[row], sum.l[row], sum.o + static_cast<size_t>(row) * v_stride(),
                shape_.window.v_dim,
                o_.row(span.token) + static_cast<size_t>(head) * static_cast<size_t>(shape_.window.v_dim));
        }
    }

    void add(const AttentionShape& shape, const AttentionSpan& where, int block, float* scratch,
             const AttentionPart& part, const AttentionPart& sum) const {
        machine_.operations->attend_block(shape, where, block, scratch, part);
        machine_.operations->merge_attention(where.heads, shape.v_stride, part, sum);
    }

    static AttentionPart part_at(float* memory) {
        return {memory, memory + kAttentionRows, memory + 2 * kAttentionRows};
    }

    const Machine machine_;
    KvCache& cache_;
    const Shape shape_;
    const Buffer& q_;
    const Buffer& kv_;
    const Buffer* entry_;
    const Buffer* chosen_;
    const Buffer& o_;
    std::vector<Span> spans_;
    std::vector<int32_t> all_;  // 0, 1, 2, ..: a selection of every entry
};

AttentionShape kernel_shape(const OpReader& op, const KvCache& cache, int number, int dim, int every) {
    op.require(number < cache.layers(), "there is no cache " + std::to_string(number));
    const KvCache::Layer& layer = cache.layer(number);
    op.require(layer.kv_heads == 1 && layer.k_dim == dim && layer.latent(), "does not fit its cache");
    op.require(every == 0 ? layer.every > 1 : layer.every == every, "its cache has other entries");
    AttentionShape shape;
    shape.k_dim = shape.v_dim = dim;
    shape.k_stride = shape.v_stride = layer.k_stride;
    shape.latent = true;
    shape.page_tokens = cache.page_tokens();
    shape.every = layer.every;
    shape.page_bytes = layer.page_bytes;
    shape.half = cache.half();
    shape.scale = op.real("scale");
    return shape;
}

}  // namespace

std::unique_ptr<Operation> make_compressed_attention(const OpReader& op) {
    op.arity(2, 1, 1, 2);
    KvCache& cache = op.builder.cache();
    const Buffer& q = op.read(0);
    const Buffer& kv = op.read(1);
    const Buffer* entry = op.has_read(2) ? &op.read(2) : nullptr;
    const Buffer* chosen = op.has_read(3) ? &op.read(3) : nullptr;
    const Buffer& o = op.write(0);
    Shape shape;
    shape.heads = op.integer("heads");
    const int dim = op.integer("dim");
    shape.cache = op.integer("cache");
    op.require(shape.heads > 0 && dim > 0, "has no heads");
    op.width(q, int64_t{shape.heads} * dim);
    op.width(kv, dim);
    op.width(o, q.width);
    shape.sinks = op.vector(0, shape.heads);
    shape.window = kernel_shape(op, cache, shape.cache, dim, 1);
    shape.window.sight = {op.integer("window"), 0};
    op.require(shape.window.sight.window > 0, "has no window");
    if (cache.layer(shape.cache).group == PageGroup::window)
        op.builder.storage().window_sights.push_back(shape.window.sight);
    if (entry != nullptr) {
        shape.entries = op.integer("entries");
        op.width(*entry, dim);
        shape.beyond = kernel_shape(op, cache, shape.entries, dim, 0);
        shape.beyond.chosen_run = 1;
        op.require(cache.layer(shape.entries).group == PageGroup::whole, "entries must all be kept");
    }
    if (chosen != nullptr) {
        op.require(chosen->integers && !chosen->per_row, "cannot read a selection");
        shape.top_k = chosen->width;
    }
    for (const Buffer* buffer : {&q, &kv, &o})
        op.require(!buffer->per_row, "buffer " + buffer->name + " does not hold a row a token");
    return std::make_unique<CompressedAttention>(op.builder.machine(), cache, shape, q, kv, entry, chosen, o);
}

}  // namespace freetoken
