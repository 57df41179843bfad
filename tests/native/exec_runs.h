// Running sequences through an executor in any batching, and what comes out.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "exec_fixture.h"

namespace freetoken::test {

using Logits = std::vector<float>;  // one row a token

// How a sequence is run: the sizes of its chunks in turn, and the pages it
// lives in.
struct Sequenced {
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;
    std::vector<int> chunks;
    int done = 0;
    Logits logits;

    int next_chunk(size_t turn) const {
        return std::min(chunks[turn % chunks.size()], static_cast<int>(tokens.size()) - done);
    }
};

inline std::vector<int32_t> random_tokens(uint64_t seed, int count) {
    Random random(seed);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = random.between(0, TinyShape::vocab - 1);
    return tokens;
}

// Runs one chunk of every unfinished sequence, in one batch.
inline void run_turn(Executor& executor, std::vector<Sequenced*>& sequences, size_t turn) {
    std::vector<int32_t> tokens, positions, rows;
    std::vector<int32_t> starts = {0};
    BatchView batch;
    for (const Sequenced* s : sequences) {
        for (int i = 0; i < s->next_chunk(turn); ++i) {
            tokens.push_back(s->tokens[static_cast<size_t>(s->done + i)]);
            positions.push_back(s->done + i);
        }
        starts.push_back(static_cast<int32_t>(tokens.size()));
        batch.page_tables.push_back(s->pages);
    }
    rows.resize(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    batch.tokens = tokens;
    batch.positions = positions;
    batch.seq_starts = starts;
    batch.rows = rows;
    std::vector<float> logits(rows.size() * static_cast<size_t>(executor.vocab()));
    executor.step(batch, 0, executor.operations(), logits.data());
    auto from = logits.begin();
    for (Sequenced* s : sequences) {
        const int count = s->next_chunk(turn);
        const auto to = from + static_cast<std::ptrdiff_t>(count) * executor.vocab();
        s->logits.insert(s->logits.end(), from, to);
        s->done += count;
        from = to;
    }
}

inline void run_all(Executor& executor, std::vector<Sequenced*> sequences) {
    for (size_t turn = 0; !sequences.empty(); ++turn) {
        run_turn(executor, sequences, turn);
        std::erase_if(sequences, [](const Sequenced* s) { return s->done == static_cast<int>(s->tokens.size()); });
    }
}

inline std::vector<int32_t> pages_from(int first, int count, int step = 1) {
    std::vector<int32_t> pages(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) pages[static_cast<size_t>(i)] = first + step * i;
    return pages;
}

struct Setup {
    const char* isa = "scalar";
    int threads = 1;
    int64_t serial_cost = 0;  // every phase is shared out
    bool half = true;
    int pages = 64;
    int windows = 0;
    int states = 0;
};

inline std::unique_ptr<Executor> make_executor(const TinyModel& model, const Setup& setup) {
    Settings settings;
    settings.page_tokens = 16;
    settings.room = {setup.pages, setup.windows, setup.states};
    settings.half_kv = setup.half;
    settings.max_tokens = 320;
    settings.serial_cost = setup.serial_cost;
    return std::make_unique<Executor>(model.spec, settings, *kernels_for(setup.isa), *operations_for(setup.isa),
                                      std::vector<int>(static_cast<size_t>(setup.threads), -1));
}

// Index of the first value whose bits differ, or -1.
inline int first_difference(const Logits& a, const Logits& b) {
    if (a.size() != b.size()) return 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!same_bits(a[i], b[i])) return static_cast<int>(i);
    }
    return -1;
}

}  // namespace freetoken::test
