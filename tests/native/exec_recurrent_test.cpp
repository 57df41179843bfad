// Recurrences through an executor: threads, chunks, neighbours and saves change no bit. Run it under the thread
// sanitizer, too: tasks share states, buffers and the slots that are saved to.
#include <algorithm>
#include <memory>
#include <numeric>

#include "exec_runs.h"

namespace freetoken::test {
namespace {

constexpr int kVocabulary = 50, kColumns = 296, kOutputs = 136, kChannels = 200;

// Every recurrent operation once, between an embedding and the logits, which are all of their outputs.
class RecurrentModel {
public:
    RecurrentModel() {
        columns("x", {{"in", kChannels}, {"dt", 40}, {"b", 7}, {"c", 7}, {"g", 4}, {"beta", 4}, {"dt2", 2},
                          {"b2", 16}, {"c2", 16}});
        columns("mixed", {{"sx", 40}, {"q", 32}, {"k", 32}, {"v", 80}, {"sx2", 16}});
        columns("y", {{"sy", 40}, {"o", 80}, {"sy2", 16}});
        spec.program.buffers.push_back({"out", kOutputs, true});
        spec.program.output = "out";
        embedding();
        op("embed", {}, {"x"}, {"embed"}, {{"scale", 1.0}});
        recurrence("conv", {"in"}, "mixed", {vector("w", kChannels * 4), vector("bias", kChannels)}, kChannels * 3,
                   {{"channels", int64_t{kChannels}}, {"kernel", int64_t{4}}, {"activation", "silu"}});
        recurrence("ssm", {"sx", "dt", "b", "c"}, "sy", {vector("a", 40 * 7), vector("d", 40), vector("db", 40)},
                   40 * 7, space(40, 1, 7));
        recurrence("delta_rule", {"q", "k", "v", "g", "beta"}, "o", {}, 4 * 16 * 20,
                   {{"heads", int64_t{4}}, {"key_heads", int64_t{2}}, {"k_dim", int64_t{16}}, {"v_dim", int64_t{20}},
                    {"scale", 0.25}});
        recurrence("ssm", {"sx2", "dt2", "b2", "c2"}, "sy2", {vector("a2", 2), vector("d2", 2), vector("db2", 2)},
                   16 * 16, space(2, 8, 16));
        op("select", {"y"}, {"out"}, {}, {});
    }

    ModelSpec spec;

private:
    using Attributes = std::map<std::string, Attribute>;

    void columns(const std::string& name, std::initializer_list<std::pair<const char*, int>> views) {
        BufferSpec whole{name, 0};
        std::vector<BufferSpec> parts;
        for (const auto& [view, width] : views) {
            parts.push_back({view, width, false, false, name, whole.width});
            whole.width += width;
        }
        spec.program.buffers.push_back(whole);
        spec.program.buffers.insert(spec.program.buffers.end(), parts.begin(), parts.end());
    }

    void op(const std::string& kind, std::vector<std::string> reads, std::vector<std::string> writes,
            std::vector<std::string> weights, Attributes attributes) {
        spec.program.ops.push_back(
            {kind, std::move(reads), std::move(writes), std::move(weights), std::move(attributes)});
    }

    void recurrence(const std::string& kind, std::vector<std::string> reads, const std::string& write,
                    std::vector<std::string> weights, int values, Attributes attributes) {
        attributes["state"] = static_cast<int64_t>(spec.program.states.size());
        spec.program.states.push_back({values});
        op(kind, std::move(reads), {write}, std::move(weights), std::move(attributes));
    }

    static Attributes space(int64_t heads, int64_t head_dim, int64_t values) {
        return {{"heads", heads}, {"head_dim", head_dim}, {"groups", int64_t{1}}, {"state_dim", values},
                {"dt_min", 0.0},  {"dt_max", 0.0}};
    }

    uint8_t* own(const std::string& name, Codec codec, int rows, int cols, bool vector, size_t values) {
        owned_.push_back(std::make_unique<std::vector<float>>(values));
        for (float& value : *owned_.back()) value = 0.5f * random_.normal();
        auto* const data = reinterpret_cast<uint8_t*>(owned_.back()->data());
        spec.weights[name] = {codec, rows, cols, vector, data, values * sizeof(float)};
        return data;
    }

    std::string vector(const std::string& name, int length) {
        own(name, Codec::f32, 1, length, true, static_cast<size_t>(length));
        return name;
    }

    void embedding() {
        own("embed", Codec::f32, kVocabulary, kColumns, false,
            static_cast<size_t>(packed_bytes(Codec::f32, kVocabulary, kColumns)) / sizeof(float));
    }

    Random random_{7};
    std::vector<std::unique_ptr<std::vector<float>>> owned_;
};

struct Chunk {
    int sequence;
    int slot;
    int position;
    int tokens;
};

// The logits of all tokens of a batch; `saves`: pairs of a token and a slot.
Logits run(Executor& executor, const std::vector<Chunk>& chunks, const std::vector<int32_t>& saves = {}) {
    std::vector<int32_t> tokens, positions, slots, starts = {0};
    BatchView batch;
    for (const Chunk& chunk : chunks) {
        const std::vector<int32_t> all = random_tokens(static_cast<uint64_t>(chunk.sequence), 60);
        for (int i = chunk.position; i < chunk.position + chunk.tokens; ++i) {
            tokens.push_back(all[static_cast<size_t>(i)]);
            positions.push_back(i);
        }
        slots.push_back(chunk.slot);
        starts.push_back(static_cast<int32_t>(tokens.size()));
        batch.page_tables.emplace_back();
    }
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    batch.tokens = tokens;
    batch.positions = positions;
    batch.seq_starts = starts;
    batch.rows = rows;
    batch.states = slots;
    batch.saves = saves;
    Logits logits(rows.size() * kOutputs);
    executor.step(batch, 0, executor.operations(), logits.data());
    return logits;
}

Logits rows_of(const Logits& logits, int first, int count) {
    const auto begin = logits.begin() + std::ptrdiff_t{first} * kOutputs;
    return Logits(begin, begin + std::ptrdiff_t{count} * kOutputs);
}

std::unique_ptr<Executor> executor_of(const RecurrentModel& model, const char* isa, int threads) {
    Settings settings;
    settings.page_tokens = 16;
    settings.room = {0, 0, 8};
    settings.max_tokens = 120;
    settings.serial_cost = 0;
    return std::make_unique<Executor>(model.spec, settings, *kernels_for(isa), *operations_for(isa),
                                      std::vector<int>(static_cast<size_t>(threads), -1));
}

}  // namespace

FREETOKEN_TEST(recurrent_steps_have_the_same_bits_on_every_table_however_they_are_cut) {
    const RecurrentModel model;
    const auto alone = executor_of(model, "scalar", 1);
    const Logits first = run(*alone, {{1, 0, 0, 60}}), second = run(*alone, {{2, 0, 0, 60}});
    CHECK(first_difference(first, second) >= 0, "two sequences look alike");
    for (const Kernels* kernels : available_kernels()) {
        const auto executor = executor_of(model, kernels->name, 3);
        Logits mixed = run(*executor, {{2, 4, 0, 17}, {1, 1, 0, 30}}, {9, 6, 17 + 12, 2, 17 + 29, 5});
        CHECK(first_difference(rows_of(mixed, 0, 17), rows_of(second, 0, 17)) < 0, "%s", kernels->name);
        CHECK(first_difference(rows_of(mixed, 17, 30), rows_of(first, 0, 30)) < 0, "%s", kernels->name);
        for (int i = 30; i < 34; ++i) {
            mixed = run(*executor, {{1, 1, i, 1}, {2, 4, i - 13, 1}});
            CHECK(first_difference(rows_of(mixed, 0, 1), rows_of(first, i, 1)) < 0, "%s", kernels->name);
            CHECK(first_difference(rows_of(mixed, 1, 1), rows_of(second, i - 13, 1)) < 0, "%s", kernels->name);
        }
        // Each goes on from where it was saved.
        mixed = run(*executor, {{1, 2, 13, 20}, {2, 6, 10, 30}, {1, 5, 30, 30}});
        CHECK(first_difference(rows_of(mixed, 0, 20), rows_of(first, 13, 20)) < 0, "%s", kernels->name);
        CHECK(first_difference(rows_of(mixed, 20, 30), rows_of(second, 10, 30)) < 0, "%s", kernels->name);
        CHECK(first_difference(rows_of(mixed, 50, 30), rows_of(first, 30, 30)) < 0, "%s", kernels->name);
    }
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
