// Matrices whose columns are stored in another order than their inputs'.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <numeric>
#include <string>

#include "exec_runs.h"

namespace freetoken::test {
namespace {

constexpr int kTokens = 150;
constexpr int kPages = 10;

// A line of 64 bytes of a tile holds one column of f32, four of q8_0; two blocks of q8_0 follow a line of scales.
int columns_a_line(Codec codec) {
    return codec == Codec::f32 ? 1 : 4;
}

int line_of(Codec codec, int unit) {
    return codec == Codec::f32 ? unit : unit + unit / 16 + 1;
}

// TinyModel(codec), but for the order in which columns are stored. Columns move anywhere in f32; within their block of
// 32 in q8_0, which changes no sum.
class OrderedModel : public TinyModel {
public:
    explicit OrderedModel(Codec codec, uint64_t seed = 9) : TinyModel(codec), codec_(codec), random_(seed) {
        const std::vector<int32_t> normed = new_order(TinyShape::hidden);
        for (const char* name : {"q", "k"}) store(name, normed);  // one order
        for (const char* name : {"o", "sg", "su", "sd", "lq", "kva", "kr", "lo", "head"})
            store(name, new_order(spec.weights.at(name).cols));
        store_experts(spec.banks[1]);
    }

    // The values of an order, to spoil them.
    float* order_values(const std::string& matrix) {
        return reinterpret_cast<float*>(const_cast<uint8_t*>(spec.weights.at(matrix + ".order").data));
    }

    float* record_order(int record, const char* name) {
        BankSpec& bank = spec.banks[1];
        const auto field = std::find_if(bank.fields.begin(), bank.fields.end(),
                                        [&](const FieldSpec& candidate) { return candidate.name == name; });
        const size_t place = static_cast<size_t>(record) % bank.records_per_shard * bank.record_bytes + field->offset;
        const auto& shard = bank.shards[static_cast<size_t>(record) / bank.records_per_shard];
        return reinterpret_cast<float*>(const_cast<uint8_t*>(shard.data) + place);
    }

private:
    std::vector<int32_t> new_order(int cols) {
        const int run = columns_a_line(codec_);
        const int reach = codec_ == Codec::f32 ? cols : kBlock / run;  // lines that may change places
        std::vector<int32_t> order;
        for (int first = 0; first < cols / run; first += reach) {
            std::vector<int32_t> lines(static_cast<size_t>(std::min(reach, cols / run - first)));
            std::iota(lines.begin(), lines.end(), first);
            for (size_t i = lines.size(); i > 1; --i)
                std::swap(lines[i - 1], lines[static_cast<size_t>(random_.between(0, static_cast<int>(i) - 1))]);
            for (const int32_t line : lines)
                for (int c = 0; c < run; ++c) order.push_back(line * run + c);
        }
        return order;
    }

    std::vector<uint8_t>& own(size_t bytes) { return copies_.emplace_back(bytes); }

    // The tiles at `data` with column i of each being what column order[i] was.
    void reorder(uint8_t* data, int rows, int cols, const std::vector<int32_t>& order) const {
        const auto tile = static_cast<size_t>(tile_bytes(codec_, cols));
        const int run = columns_a_line(codec_);
        for (int64_t t = 0; t < tile_count(rows); ++t, data += tile) {
            const std::vector<uint8_t> before(data, data + tile);
            for (int unit = 0; unit < cols / run; ++unit) {
                const int from = order[static_cast<size_t>(unit * run)] / run;
                std::memcpy(data + 64 * line_of(codec_, unit), before.data() + 64 * line_of(codec_, from), 64);
            }
        }
    }

    static void write_order(const std::vector<int32_t>& order, uint8_t* out) {
        const std::vector<float> values(order.begin(), order.end());
        std::memcpy(out, values.data(), values.size() * sizeof(float));
    }

    void store(const std::string& name, const std::vector<int32_t>& order) {
        WeightSpec& weight = spec.weights.at(name);
        auto& bytes = own(weight.bytes);
        std::memcpy(bytes.data(), weight.data, weight.bytes);
        reorder(bytes.data(), weight.rows, weight.cols, order);
        weight.data = bytes.data();
        auto& values = own(order.size() * sizeof(float));
        write_order(order, values.data());
        spec.weights[name + ".order"] = {Codec::f32, 1, weight.cols, true, values.data(), values.size()};
    }

    // gate and up of every other expert have one order, of the others two.
    void store_experts(BankSpec& bank) {
        const size_t old_bytes = bank.record_bytes;
        const FieldSpec gate = bank.fields[0], up = bank.fields[1], last = bank.fields.back();
        size_t end = last.offset + static_cast<size_t>(last.cols) * sizeof(float);
        for (const char* name : {"gate.order", "up.order"}) {
            bank.fields.push_back({name, Codec::f32, 1, TinyShape::hidden, true, end});
            end += TinyShape::hidden * sizeof(float);
        }
        bank.record_bytes = (end + 4095) / 4096 * 4096;
        int expert = 0;
        for (BankSpec::Shard& shard : bank.shards) {
            const size_t records = shard.bytes / old_bytes;
            auto& bytes = own(records * bank.record_bytes);
            for (size_t i = 0; i < records; ++i, ++expert) {
                uint8_t* record = bytes.data() + i * bank.record_bytes;
                std::memcpy(record, shard.data + i * old_bytes, old_bytes);
                const auto gate_order = new_order(TinyShape::hidden);
                const auto up_order = expert % 2 == 0 ? gate_order : new_order(TinyShape::hidden);
                reorder(record + gate.offset, gate.rows, gate.cols, gate_order);
                reorder(record + up.offset, up.rows, up.cols, up_order);
                write_order(gate_order, record + bank.fields[bank.fields.size() - 2].offset);
                write_order(up_order, record + bank.fields.back().offset);
            }
            shard = {bytes.data(), bytes.size()};
        }
    }

    const Codec codec_;
    Random random_;
    std::list<std::vector<uint8_t>> copies_;
};

Logits logits(const TinyModel& model, const Setup& setup, const std::vector<int>& chunks) {
    const auto executor = make_executor(model, setup);
    Sequenced s{random_tokens(2, kTokens), pages_from(0, kPages), chunks};
    run_all(*executor, {&s});
    return s.logits;
}

// The largest difference as a share of the largest value.
double distance(const Logits& a, const Logits& b) {
    double largest = 0, gap = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(a[i])));
        gap = std::max(gap, std::abs(static_cast<double>(a[i]) - b[i]));
    }
    return gap / largest;
}

std::string refusal(Codec codec, const std::function<void(OrderedModel&)>& change) {
    OrderedModel model(codec);
    change(model);
    try {
        make_executor(model, {});
    } catch (const ProgramError& error) {
        return error.what();
    }
    return "accepted";
}

void expect(const char* part, const std::function<void(OrderedModel&)>& change) {
    const std::string text = refusal(Codec::q8_0, change);
    CHECK(text.find(part) != std::string::npos, "\"%s\" does not say \"%s\"", text.c_str(), part);
}

}  // namespace

FREETOKEN_TEST(columns_that_move_within_their_blocks_change_no_bit) {
    const Logits expected = logits(TinyModel(Codec::q8_0), {}, {kTokens});
    const OrderedModel model(Codec::q8_0);
    int threads = 0;
    for (const Kernels* kernels : available_kernels()) {
        for (const std::vector<int>& chunks : {std::vector<int>{kTokens}, {17, 1, 64, 3}, {100, 1, 1}}) {
            threads = threads % 7 + 1;
            const Logits found = logits(model, {.isa = kernels->name, .threads = threads}, chunks);
            CHECK(first_difference(found, expected) < 0, "%s, %d threads, chunks of %d: value %d", kernels->name,
                  threads, chunks[0], first_difference(found, expected));
        }
    }
}

FREETOKEN_TEST(columns_that_move_anywhere_change_the_order_of_sums_alone) {
    const Logits expected = logits(TinyModel(Codec::f32), {.half = false}, {kTokens});
    const OrderedModel model(Codec::f32);
    const Logits first = logits(model, {.half = false}, {kTokens});
    CHECK(distance(first, expected) < 2e-5, "%g", distance(first, expected));
    for (const Kernels* kernels : available_kernels()) {
        for (const int threads : {1, 2, 5}) {
            const Logits found =
                logits(model, {.isa = kernels->name, .threads = threads, .half = false}, {13, 1, 1, 70});
            CHECK(first_difference(found, first) < 0, "%s, %d threads", kernels->name, threads);
        }
    }
}

FREETOKEN_TEST(an_order_that_is_ignored_shows) {
    const Logits expected = logits(TinyModel(Codec::f32), {.half = false}, {kTokens});
    for (const char* name : {"q", "k", "o", "sg", "su", "sd", "lq", "kva", "kr", "lo", "head"}) {
        OrderedModel model(Codec::f32);
        model.spec.weights.erase(std::string(name) + ".order");
        CHECK(distance(logits(model, {.half = false}, {kTokens}), expected) > 1e-3, "%s", name);
    }
    for (const char* name : {"gate.order", "up.order"}) {
        OrderedModel model(Codec::f32);
        for (int expert = 0; expert < TinyShape::experts; ++expert)
            std::iota(model.record_order(expert, name), model.record_order(expert, name) + TinyShape::hidden, 0.0f);
        CHECK(distance(logits(model, {.half = false}, {kTokens}), expected) > 1e-3, "%s", name);
    }
}

FREETOKEN_TEST(orders_that_do_not_fit_are_refused_by_name) {
    expect("accepted", [](OrderedModel&) {});
    expect("q.order does not name every column once", [](OrderedModel& m) { m.order_values("q")[5] = 7; });
    expect("q.order does not name every column once", [](OrderedModel& m) { m.order_values("q")[5] = 96; });
    expect("o.order does not name every column once", [](OrderedModel& m) { m.order_values("o")[0] = NAN; });
    expect("o.order must be a vector of 96 values", [](OrderedModel& m) { m.spec.weights["o.order"].cols = 95; });
    expect("o.order must be a vector", [](OrderedModel& m) { m.spec.weights["o.order"].vector = false; });
    expect("o.order must be a vector", [](OrderedModel& m) { m.spec.weights["o.order"].bytes = 380; });
    expect("the columns of the weight v_up are in another order",
           [](OrderedModel& m) { m.spec.weights["v_up.order"] = m.spec.weights["sd.order"]; });
    expect("gate.order has 32 values instead of 96",
           [](OrderedModel& m) { m.spec.banks[1].fields[m.spec.banks[1].fields.size() - 2].cols = 32; });
    expect("are not apart", [](OrderedModel& m) {
        m.spec.banks[0].fields.push_back({"up.order", Codec::f32, 1, TinyShape::hidden, true, 0});
    });
    expect("unknown field down.order", [](OrderedModel& m) { m.spec.banks[1].fields.back().name = "down.order"; });
}

FREETOKEN_TEST(an_order_that_changes_nothing_costs_nothing) {
    TinyModel model(Codec::f32);
    std::vector<float> own(TinyShape::hidden);
    std::iota(own.begin(), own.end(), 0.0f);
    model.spec.weights["embed.order"] = {Codec::f32,
                                         1,
                                         TinyShape::hidden,
                                         true,
                                         reinterpret_cast<const uint8_t*>(own.data()),
                                         own.size() * sizeof(float)};
    const Logits found = logits(model, {}, {kTokens});
    CHECK(first_difference(found, logits(TinyModel(Codec::f32), {}, {kTokens})) < 0, "bits differ");
}

FREETOKEN_TEST(a_damaged_order_in_a_record_reads_no_foreign_memory) {
    OrderedModel model(Codec::q8_0);
    const float damaged[] = {NAN, INFINITY, -INFINITY, -1.0f, 96.0f, 3e9f, -3e9f, 1e30f};
    for (int expert = 0; expert < TinyShape::experts; ++expert)
        std::copy(std::begin(damaged), std::end(damaged), model.record_order(expert, "gate.order"));
    const Logits found = logits(model, {.threads = 3}, {20, 1});
    CHECK(std::all_of(found.begin(), found.end(), [](float v) { return std::isfinite(v); }), "not finite");
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
