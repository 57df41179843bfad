// The choice of what attention looks at: appends an indexer's keys to their cache, scores all of them for each query,
// and keeps the numbers of the best.
#include <algorithm>
#include <limits>

#include "exec/best.h"
#include "exec/builder.h"

namespace freetoken {
namespace {

struct Choice {
    IndexShape kernel;
    int cache = 0;
    int top_k = 0;
    int block = 1;  // entries that one number stands for
    int local = 0;  // blocks that are always chosen: the last, and those before it
    bool tail = false;  // the entry under way is named behind those that are chosen

    int numbers() const { return top_k + (tail ? 1 : 0); }
};

// Some consecutive queries of a sequence, which are scored together.
struct Queries {
    const Sequence* sequence = nullptr;
    int token = 0;  // in the batch
    int count = 0;
    int entries = 0;          // that the last of them sees; 0: none of them needs a score
    size_t first_scores = 0;  // of its blocks', where blocks are shared out

    int blocks() const { return (entries + kAttentionBlock - 1) / kAttentionBlock; }
};

// The candidates of one query and one set, as their scores come in.
struct Candidates {
    Best best;
    float largest = 0.0f;  // of the block of entries under way
};

class Choose final : public Operation {
public:
    Choose(const Machine& machine, const KvCache& cache, const Choice& choice, const Buffer& q, const Buffer* k,
           const Buffer* weights, const Buffer& chosen, Mapping& scores)
        : Operation(Clock::attention),
          machine_(machine),
          cache_(cache),
          choice_(choice),
          q_(q),
          k_(k),
          weights_(weights),
          chosen_(chosen),
          scores_(scores) {}

    // Append; score and choose; and where the blocks of queries were shared out, choose.
    int phases() const override { return 3; }

    size_t scratch_bytes() const override { return candidates_at() + rows() * Best::room(choice_.top_k) * 8; }

    Work prepare(int phase, const Step& step) override {
        switch (phase) {
            case 0:
                return {{k_ == nullptr ? 0 : static_cast<uint32_t>(step.tokens), 4},
                        step.tokens * choice_.kernel.k_dim};
            case 1:
                return plan(step);
            default:
                return {{shared_out_ ? static_cast<uint32_t>(spans_.size()) : 0}, kNeverAlone};
        }
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) {
            if (phase == 0)
                append(step, static_cast<int>(task));
            else if (phase == 2)
                choose_shared(spans_[task], scratch);
            else if (shared_out_)
                score_shared(task, scratch);
            else
                choose(spans_[task], scratch);
        }
    }

private:
    const KvCache::Layer& layer() const { return cache_.layer(choice_.cache); }
    const int32_t* pages_of(const Sequence& sequence) const {
        return layer().group == PageGroup::window ? sequence.windows : sequence.pages;
    }
    int queries_together() const { return std::max(1, kAttentionRows / choice_.kernel.heads); }
    // Of one span: a row is a query and a set.
    size_t rows() const { return static_cast<size_t>(queries_together() * choice_.kernel.sets()); }
    size_t score_values() const { return rows() * kAttentionBlock; }

    // Where the parts of the scratch memory lie, in bytes.
    size_t scores_at() const {
        const size_t values = machine_.operations->index_scratch(choice_.kernel, queries_together());
        return (values + 15) / 16 * 16 * sizeof(float);
    }
    size_t candidates_at() const { return scores_at() + score_values() * sizeof(float); }

    int entries(int position) const { return (position + 1) / layer().every; }
    int numbers(int entries) const { return (entries + choice_.block - 1) / choice_.block; }

    const uint8_t* key(const Sequence& sequence, int entry) const {
        const EntryPlace place = entry_place(entry, layer().every, cache_.page_tokens());
        const size_t bytes = static_cast<size_t>(layer().k_stride) * cache_.value_bytes();
        return layer().keys(0, pages_of(sequence)[place.page]) + static_cast<size_t>(place.slot) * bytes;
    }

    // The sequence of a token is found from its position: the tasks of this phase are tokens of all sequences.
    void append(const Step& step, int token) {
        const auto next = std::upper_bound(step.sequences.begin(), step.sequences.end(), token,
                                           [](int value, const Sequence& s) { return value < s.begin; });
        const int position = step.positions[token];
        if ((position + 1) % layer().every != 0) return;  // completes no entry
        auto* const target = const_cast<uint8_t*>(key(*(next - 1), position / layer().every));
        machine_.operations->store_cached(k_->row(token), layer().k_dim, layer().k_stride, cache_.half(), target);
    }

    // Cuts the batch into spans; where there are too few for the threads, each block of each span is a task.
    Work plan(const Step& step) {
        spans_.clear();
        int64_t scored = 0;
        size_t blocks = 0;
        for (const Sequence& sequence : step.sequences) {
            for (int token = 0; token < sequence.tokens; token += queries_together()) {
                Queries span{&sequence, sequence.begin + token};
                span.count = std::min(queries_together(), sequence.tokens - token);
                span.entries = entries(sequence.position + token + span.count - 1);
                if (numbers(span.entries) <= choice_.top_k) span.entries = 0;
                span.first_scores = blocks;
                blocks += static_cast<size_t>(span.blocks());
                scored += int64_t{span.count} * (span.entries + choice_.top_k);
                spans_.push_back(span);
            }
        }
        const int64_t cost = scored * choice_.kernel.heads * choice_.kernel.k_dim / 4;
        const size_t wanted = 4 * static_cast<size_t>(machine_.threads);
        shared_out_ = machine_.threads > 1 && spans_.size() < wanted && blocks > spans_.size();
        if (!shared_out_) return {{static_cast<uint32_t>(spans_.size())}, cost};
        scores_.reserve(blocks * score_values() * sizeof(float));
        return {{static_cast<uint32_t>(blocks)}, cost};
    }

    void score(const Queries& span, int block, uint8_t* scratch, float* scores) {
        const int first = block * kAttentionBlock;
        const uint8_t* keys[kAttentionBlock];
        IndexSpan where;
        where.entries = std::min(kAttentionBlock, span.entries - first);
        for (int i = 0; i < where.entries; ++i) keys[i] = key(*span.sequence, first + i);
        where.keys = keys;
        where.q = q_.row(span.token);
        where.q_stride = q_.stride;
        where.queries = span.count;
        if (weights_ != nullptr) {
            where.weights = weights_->row(span.token);
            where.weight_stride = weights_->stride;
        }
        machine_.operations->index_scores(choice_.kernel, where, reinterpret_cast<float*>(scratch), scores);
    }

    void score_shared(uint32_t task, uint8_t* scratch) {
        const auto next = std::upper_bound(spans_.begin(), spans_.end(), size_t{task},
                                           [](size_t value, const Queries& s) { return value < s.first_scores; });
        const Queries& span = *(next - 1);  // those without a block come before the one that begins where they do
        const int block = static_cast<int>(task - span.first_scores);
        score(span, block, scratch, scores_.floats() + task * score_values());
    }

    void choose(const Queries& span, uint8_t* scratch) {
        auto* const scores = reinterpret_cast<float*>(scratch + scores_at());
        choose_from(span, scratch, [&](int block) {
            score(span, block, scratch, scores);
            return scores;
        });
    }

    void choose_shared(const Queries& span, uint8_t* scratch) {
        choose_from(span, scratch, [&](int block) {
            return scores_.floats() + (span.first_scores + static_cast<size_t>(block)) * score_values();
        });
    }

    // `scores_of` gives the scores of a block.
    template <class Scores>
    void choose_from(const Queries& span, uint8_t* scratch, Scores scores_of) {
        const int sets = choice_.kernel.sets();
        auto* memory = reinterpret_cast<uint64_t*>(scratch + candidates_at());
        std::vector<Candidates> candidates;
        for (int row = 0; row < span.count * sets; ++row, memory += Best::room(choice_.top_k))
            candidates.push_back({Best(memory, choice_.top_k)});
        for (int block = 0; block < span.blocks(); ++block) {
            const float* scores = scores_of(block);
            for (int row = 0; row < span.count * sets; ++row)
                add(candidates[static_cast<size_t>(row)], block * kAttentionBlock, visible(span, row / sets),
                    scores + row * kAttentionBlock);
        }
        for (int row = 0; row < span.count * sets; ++row) {
            int32_t* const out = chosen_.int_row(span.token + row / sets) + row % sets * choice_.numbers();
            const int all = numbers(visible(span, row / sets));
            const int kept = std::min(all, choice_.top_k);
            for (int i = 0; i < choice_.numbers(); ++i) out[i] = i < kept ? i : -1;
            if (all > choice_.top_k) candidates[static_cast<size_t>(row)].best.numbers(out);
            if (choice_.tail && (position(span, row / sets) + 1) % layer().every != 0) out[kept] = all;
        }
    }

    int position(const Queries& span, int query) const {
        return span.sequence->position + span.token + query - span.sequence->begin;
    }
    int visible(const Queries& span, int query) const { return entries(position(span, query)); }

    // Entries from `first` on, of which the query sees those before `end`.
    void add(Candidates& candidates, int first, int end, const float* scores) const {
        const int count = std::min(kAttentionBlock, end - first);
        if (choice_.block == 1 && choice_.local == 0) {
            for (int i = 0; i < count; ++i) candidates.best.add(scores[i], first + i);
            return;
        }
        const int forced = numbers(end) - choice_.local;
        for (int i = 0; i < count; ++i) {
            const int entry = first + i;
            const int number = entry / choice_.block;
            const bool begins = entry % choice_.block == 0;
            candidates.largest = begins || scores[i] > candidates.largest ? scores[i] : candidates.largest;
            const bool ends = entry + 1 == end || (entry + 1) % choice_.block == 0;
            if (!ends) continue;
            candidates.best.add(number < forced ? candidates.largest : std::numeric_limits<float>::infinity(), number);
        }
    }

    const Machine machine_;
    const KvCache& cache_;
    const Choice choice_;
    const Buffer& q_;
    const Buffer* k_;
    const Buffer* weights_;
    const Buffer& chosen_;
    std::vector<Queries> spans_;
    bool shared_out_ = false;
    Mapping& scores_;
};

}  // namespace

std::unique_ptr<Operation> make_choose(const OpReader& op) {
    op.arity(1, 1, 0, 2);
    const KvCache& cache = op.builder.cache();
    const Buffer& q = op.read(0);
    const Buffer* k = op.has_read(1) ? &op.read(1) : nullptr;
    const Buffer* weights = op.has_read(2) ? &op.read(2) : nullptr;
    const Buffer& chosen = op.write(0);
    Choice choice;
    choice.cache = op.integer("cache");
    op.require(choice.cache < cache.layers(), "there is no cache " + std::to_string(choice.cache));
    const KvCache::Layer& layer = cache.layer(choice.cache);
    choice.top_k = op.integer("top_k");
    choice.block = op.integer("block");
    choice.local = op.integer("local");
    choice.tail = op.flag("tail");
    IndexShape& kernel = choice.kernel;
    kernel.heads = op.integer("heads");
    kernel.k_dim = op.integer("k_dim");
    kernel.k_stride = layer.k_stride;
    kernel.half = cache.half();
    kernel.weighted = weights != nullptr;
    op.require(layer.kv_heads == 1 && layer.latent() && kernel.k_dim == layer.k_dim, "does not fit its cache");
    op.require(kernel.heads > 0 && choice.top_k > 0 && choice.block > 0, "chooses nothing");
    op.require(choice.local <= choice.top_k, "must choose more than it may");
    op.require(!choice.tail || (choice.block == 1 && layer.every > 1), "has a tail of single tokens");
    op.width(q, int64_t{kernel.heads} * kernel.k_dim);
    if (k != nullptr) op.width(*k, kernel.k_dim);
    if (weights != nullptr) op.width(*weights, kernel.heads);
    op.width(chosen, int64_t{kernel.sets()} * choice.numbers());
    op.require(chosen.integers, "the chosen numbers are integers");
    for (const Buffer* buffer : {&q, k, weights, &chosen})
        op.require(buffer == nullptr || !buffer->per_row, "works on one row a token");
    return std::make_unique<Choose>(op.builder.machine(), cache, choice, q, k, weights, chosen,
                                    op.builder.storage().workspace.index_scores);
}

}  // namespace freetoken
