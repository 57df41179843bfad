#include "exec/batch_check.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

namespace freetoken {
namespace {

std::string text(int64_t n) {
    return std::to_string(n);
}

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument(why);
}

// Pages [first, last) of a table are there.
void check_table(const std::string& name, const char* what, std::span<const int32_t> table, int first, int last,
                 int pages) {
    if (table.size() < static_cast<size_t>(last))
        refuse(name + " needs " + text(last) + " " + what + "s and has " + std::to_string(table.size()));
    for (int i = first; i < last; ++i) {
        const int page = table[static_cast<size_t>(i)];
        if (page < 0 || page >= pages) refuse(name + " uses " + what + " " + text(page) + " of " + text(pages));
    }
}

void check_sequence(const BatchView& batch, const BatchLimits& limits, size_t index) {
    const int begin = batch.seq_starts[index];
    const int end = batch.seq_starts[index + 1];
    const std::string name = "sequence " + std::to_string(index);
    if (begin < 0 || end < begin || end > static_cast<int>(batch.tokens.size()))
        refuse(name + " has bounds " + text(begin) + " and " + text(end));
    if (begin == end) return;
    const auto at = [&](int token) { return batch.positions[static_cast<size_t>(token)]; };
    if (at(begin) < 0) refuse(name + " starts at position " + text(at(begin)));
    for (int token = begin + 1; token < end; ++token) {
        if (at(token) != at(token - 1) + 1) refuse(name + " has a gap in its positions");
    }
    const int pages = at(end - 1) / limits.page_tokens + 1;
    if (limits.paged) check_table(name, "page", batch.page_tables[index], 0, pages, limits.room.pages);
    if (!limits.windows.empty()) {
        int oldest = at(begin);
        for (const Sight& sight : limits.windows) oldest = std::min(oldest, sight.oldest(at(begin)));
        check_table(name, "window page", batch.window_tables[index], oldest / limits.page_tokens, pages,
                    limits.room.windows);
    }
    if (limits.recurrent && (batch.states[index] < 0 || batch.states[index] >= limits.room.states))
        refuse(name + " has state " + text(batch.states[index]) + " of " + text(limits.room.states));
}

std::vector<Save> checked_saves(const BatchView& batch, const BatchLimits& limits, std::set<int>& taken) {
    if (batch.saves.size() % 2 != 0) refuse("saves are pairs of a token and a state");
    std::vector<Save> saves;
    for (size_t i = 0; i < batch.saves.size(); i += 2) {
        const Save save = {batch.saves[i], batch.saves[i + 1]};
        if (save.token < 0 || save.token >= static_cast<int>(batch.tokens.size()))
            refuse("a save after token " + text(save.token) + " of " + std::to_string(batch.tokens.size()));
        if (!saves.empty() && save.token <= saves.back().token)
            refuse("a save after token " + text(save.token) + " behind one after token " + text(saves.back().token));
        if (save.slot < 0 || save.slot >= limits.room.states)
            refuse("a save to state " + text(save.slot) + " of " + text(limits.room.states));
        if (!taken.insert(save.slot).second) refuse("a save to state " + text(save.slot) + ", which is in use");
        saves.push_back(save);
    }
    return saves;
}

void check_parts(const BatchView& batch, const BatchLimits& limits) {
    const size_t tokens = batch.tokens.size();
    if (tokens > static_cast<size_t>(limits.max_tokens) || batch.rows.size() > tokens)
        refuse("a step of " + std::to_string(tokens) + " tokens and " + std::to_string(batch.rows.size()) +
               " rows; there is room for " + text(limits.max_tokens) + " tokens");
    const auto& starts = batch.seq_starts;
    const size_t sequences = batch.page_tables.size();
    if (batch.positions.size() != tokens || starts.size() != sequences + 1 || starts.front() != 0 ||
        starts.back() != static_cast<int>(tokens))
        refuse("the parts of the batch do not fit together");
    if (!limits.windows.empty() && batch.window_tables.size() != sequences)
        refuse(std::to_string(batch.window_tables.size()) + " tables of window pages for " +
               std::to_string(sequences) + " sequences");
    if (limits.recurrent && batch.states.size() != sequences)
        refuse(std::to_string(batch.states.size()) + " states for " + std::to_string(sequences) + " sequences");
    for (const int32_t token : batch.tokens) {
        if (token < 0 || token >= limits.vocabulary)
            refuse("token " + text(token) + " of a vocabulary of " + text(limits.vocabulary));
    }
    for (const int32_t row : batch.rows) {
        if (row < 0 || row >= static_cast<int>(tokens)) refuse("logits of token " + text(row));
    }
}

}  // namespace

Step checked_step(const BatchView& batch, const BatchLimits& limits) {
    check_parts(batch, limits);
    Step step;
    step.tokens = static_cast<int>(batch.tokens.size());
    step.rows = static_cast<int>(batch.rows.size());
    step.ids = batch.tokens.data();
    step.positions = batch.positions.data();
    step.row_tokens = batch.rows.data();
    std::set<int> taken;  // states
    for (size_t i = 0; i < batch.page_tables.size(); ++i) {
        check_sequence(batch, limits, i);
        const int begin = batch.seq_starts[i], end = batch.seq_starts[i + 1];
        if (begin == end) continue;
        Sequence sequence = {begin, end - begin, batch.positions[static_cast<size_t>(begin)],
                             batch.page_tables[i].data()};
        if (!limits.windows.empty()) sequence.windows = batch.window_tables[i].data();
        if (limits.recurrent) {
            sequence.state = batch.states[i];
            if (!taken.insert(sequence.state).second)
                refuse("sequence " + std::to_string(i) + " has the state of another, " + text(sequence.state));
        }
        step.sequences.push_back(sequence);
    }
    if (limits.recurrent) step.saves = checked_saves(batch, limits, taken);
    return step;
}

}  // namespace freetoken
