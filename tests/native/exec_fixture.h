// A small random model that uses every operation, and a way to run sequences
// through it in any batching.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "kernels_fixture.h"

namespace freetoken::test {

struct TinyShape {
    static constexpr int hidden = 96, vocab = 50, heads = 4, kv_heads = 2, head_dim = 24;
    static constexpr int nope = 16, rotary = 8,
                         latent = 32;  // of the latent layer
    static constexpr int experts = 5, top_k = 2, width = 96, shared = 32;
};

// Layer 0: grouped queries with a window and sinks, experts with gate_up, a
// gated shared expert. Layer 1: latent attention, experts with gate and up
// apart, biases and the clamped activation. Matrices are of `codec` where it
// fits.
class TinyModel {
public:
    explicit TinyModel(Codec codec, uint64_t seed = 1) : random_(seed), codec_(codec) {
        buffers();
        op("embed", {}, {"x"}, {matrix("embed", Codec::f32, S::vocab, S::hidden)}, {{"scale", 1.5}});
        grouped_layer();
        latent_layer();
        op("select", {"x"}, {"r"});
        norm("r", "r", "final", S::hidden);
        op("linear", {"r"}, {"out"}, {matrix("head", codec_, S::vocab, S::hidden), ""}, {{"scale", 0.5}});
        spec.program.output = "out";
    }

    ModelSpec spec;

    OpSpec& op_of(const std::string& kind) {
        for (OpSpec& op : spec.program.ops) {
            if (op.kind == kind) return op;
        }
        throw std::out_of_range(kind);
    }
    // The embedding of one token, to spoil it.
    void set_embedding(int token, int column, float value) {
        auto& bytes = *owned_.at("embed");
        const size_t tile = static_cast<size_t>(token / 16 * tile_bytes(Codec::f32, S::hidden));
        std::memcpy(bytes.data() + tile + static_cast<size_t>(column * 16 + token % 16) * 4, &value, 4);
    }

private:
    using S = TinyShape;
    using Attributes = std::map<std::string, Attribute>;

    void buffers() {
        const std::pair<const char*, int> widths[] = {
            {"x", S::hidden},
            {"n", S::hidden},
            {"p", S::hidden},
            {"q", S::heads * S::head_dim},
            {"k", S::kv_heads * S::head_dim},
            {"v", S::kv_heads * S::head_dim},
            {"o", S::heads * S::head_dim},
            {"scores", S::experts},
            {"w", S::top_k},
            {"g", S::shared},
            {"u", S::shared},
            {"s", S::hidden},
            {"sg", 1},
            {"lq", S::heads * (S::latent + S::rotary)},
            {"lk", S::latent + S::rotary},
            {"kv", S::latent},
            {"ml", S::heads * S::latent},
        };
        for (const auto& [name, width] : widths) spec.program.buffers.push_back({name, width});
        spec.program.buffers.push_back({"ids", S::top_k, false, true});
        spec.program.buffers.push_back({"lk.latent", S::latent, false, false, "lk", 0});
        spec.program.buffers.push_back({"lk.rope", S::rotary, false, false, "lk", S::latent});
        spec.program.buffers.push_back({"r", S::hidden, true});
        spec.program.buffers.push_back({"out", S::vocab, true});
        spec.program.caches = {{S::kv_heads, S::head_dim, S::head_dim}, {1, S::latent + S::rotary, 0}};
        spec.program.ropes = {{{1, 0.5f, 0.25f, 0.1f, 0.05f, 0.02f, 0.01f, 0.001f}, 1.0f},
                              {{0.7f, 0.2f, 0.03f, 0.01f}, 1.2f}};
    }

    void grouped_layer() {
        norm("x", "n", "attn0", S::hidden);
        const int q_rows = S::heads * S::head_dim, kv_rows = S::kv_heads * S::head_dim;
        op("linear", {"n"}, {"q", "k", "v"},
           {matrix("q", codec_, q_rows, S::hidden), vector("q_bias", q_rows), matrix("k", codec_, kv_rows, S::hidden),
            "", matrix("v", Codec::bf16, kv_rows, S::hidden), ""},
           {{"scale", 1.0}});
        norm("q", "q", "q_norm", S::head_dim);
        rope("q", S::heads, S::head_dim, 4, 16, false, 0);
        rope("k", S::kv_heads, S::head_dim, 4, 16, false, 0);
        attention({"q", "k", "v"}, "o", vector("sinks", S::heads), 0, S::kv_heads, S::head_dim, S::head_dim, 290);
        op("linear", {"o"}, {"p"}, {matrix("o", codec_, S::hidden, q_rows), ""}, {{"scale", 1.0}});
        add("x", "p", "x", 1.0);
        moe(0, "softmax", "silu");
        op("linear", {"n"}, {"g", "u"},
           {matrix("sg", codec_, S::shared, S::hidden), "", matrix("su", codec_, S::shared, S::hidden), ""},
           {{"scale", 1.0}});
        op("glu", {"g", "u"}, {"g"}, {}, {{"activation", "silu"}, {"alpha", 1.0}, {"limit", 0.0}});
        op("linear", {"g"}, {"s"}, {matrix("sd", codec_, S::hidden, S::shared), ""}, {{"scale", 1.0}});
        op("linear", {"n"}, {"sg"}, {matrix("gate", Codec::f16, 1, S::hidden), ""}, {{"scale", 1.0}});
        op("sigmoid_gate", {"s", "sg"}, {"s"});
        add("p", "s", "p", 1.0);
        add("x", "p", "x", 0.5);
    }

    void latent_layer() {
        const int key = S::latent + S::rotary, query = S::nope + S::rotary;
        norm("x", "n", "attn1", S::hidden);
        op("linear", {"n"}, {"q", "kv", "lk.rope"},
           {matrix("lq", codec_, S::heads * query, S::hidden), "", matrix("kva", codec_, S::latent, S::hidden), "",
            matrix("kr", codec_, S::rotary, S::hidden), ""},
           {{"scale", 1.0}});
        norm("kv", "lk.latent", "kv_norm", S::latent);
        heads_op("head_linear", "q", "lq", {matrix("k_up", Codec::f16, S::heads * S::latent, S::nope)}, query, 0, key,
                 0, {});
        heads_op("head_copy", "q", "lq", {}, query, S::nope, key, S::latent, {{"width", int64_t{S::rotary}}});
        rope("lq", S::heads, key, S::latent, S::rotary, true, 1);
        rope("lk", 1, key, S::latent, S::rotary, true, 1);
        attention({"lq", "lk"}, "ml", "", 1, 1, key, S::latent, 0);
        heads_op("head_linear", "ml", "o", {matrix("v_up", codec_, S::heads * S::head_dim, S::latent)}, S::latent, 0,
                 S::head_dim, 0, {});
        op("linear", {"o"}, {"p"},
           {matrix("lo", codec_, S::hidden, S::heads * S::head_dim), vector("lo_bias", S::hidden)}, {{"scale", 1.0}});
        add("x", "p", "x", 1.0);
        moe(1, "sigmoid", "clamped_silu");
        add("x", "p", "x", 1.0);
    }

    void moe(int layer, const char* scoring, const char* activation) {
        const std::string name = "moe" + std::to_string(layer);
        norm("x", "n", name, S::hidden);
        op("linear", {"n"}, {"scores"}, {matrix(name + ".router", Codec::f32, S::experts, S::hidden), ""},
           {{"scale", 1.0}});
        op("route", {"scores"}, {"ids", "w"}, {layer == 1 ? vector("choice", S::experts) : ""},
           {{"top_k", int64_t{S::top_k}},
            {"scoring", scoring},
            {"groups", int64_t{1}},
            {"top_groups", int64_t{1}},
            {"group_top", int64_t{1}},
            {"normalize", true},
            {"scale", 1.0}});
        op("experts", {"n", "ids", "w"}, {"p"}, {},
           {{"layer", int64_t{layer}},
            {"experts", int64_t{S::experts}},
            {"activation", activation},
            {"alpha", 1.7},
            {"limit", 2.0}});
        bank(layer);
    }

    void bank(int layer) {
        BankSpec bank;
        size_t offset = 0;
        const auto field = [&](const char* name, Codec codec, int rows, int cols, bool vector, int copies) {
            bank.fields.push_back({name, codec, rows, cols, vector, offset});
            const int64_t bytes = vector ? int64_t{cols} * 4 : copies * packed_bytes(codec, rows, cols);
            offset += static_cast<size_t>((bytes + 63) / 64 * 64);
        };
        if (layer == 0) {
            field("gate_up", codec_, S::width, S::hidden, false, 2);
        } else {
            field("gate", codec_, S::width, S::hidden, false, 1);
            field("up", codec_, S::width, S::hidden, false, 1);
        }
        field("down", layer == 0 ? codec_ : Codec::q8_0, S::hidden, S::width, false, 1);
        if (layer == 1) {
            field("gate_bias", Codec::f32, 1, S::width, true, 1);
            field("up_bias", Codec::f32, 1, S::width, true, 1);
            field("down_bias", Codec::f32, 1, S::hidden, true, 1);
        }
        bank.record_bytes = (offset + 4095) / 4096 * 4096;
        bank.experts_per_layer = S::experts;
        bank.layers = {layer};
        bank.records_per_shard = 3;  // the last shard is shorter
        for (int first = 0; first < S::experts; first += 3) {
            const int count = std::min(3, S::experts - first);
            auto& bytes = own("bank" + std::to_string(layer) + "." + std::to_string(first),
                              bank.record_bytes * static_cast<size_t>(count));
            for (int i = 0; i < count; ++i)
                fill_record(bank, bytes.data() + bank.record_bytes * static_cast<size_t>(i));
            bank.shards.push_back({bytes.data(), bytes.size()});
        }
        spec.banks.push_back(bank);
    }

    void fill_record(const BankSpec& bank, uint8_t* record) {
        for (const FieldSpec& field : bank.fields) {
            uint8_t* out = record + field.offset;
            if (field.vector) {
                const std::vector<float> values = random_row(random_, field.cols, Values::normal);
                std::memcpy(out, values.data(), values.size() * 4);
                continue;
            }
            const int64_t tile = tile_bytes(field.codec, field.cols);
            const int copies = field.name == "gate_up" ? 2 : 1;
            for (int copy = 0; copy < copies; ++copy) {
                const RawMatrix raw = random_matrix(random_, field.codec, field.rows, field.cols);
                pack_rows(form_of(field.codec), raw.bytes.data(), field.rows, field.cols, out + copy * tile, copies * tile);
            }
        }
    }

    std::vector<uint8_t>& own(const std::string& name, size_t bytes) {
        return *owned_.emplace(name, std::make_unique<std::vector<uint8_t>>(bytes)).first->second;
    }

    std::string matrix(const std::string& name, Codec codec, int rows, int cols) {
        const RawMatrix raw = random_matrix(random_, codec, rows, cols);
        auto& bytes = own(name, static_cast<size_t>(packed_bytes(codec, rows, cols)));
        pack_rows(form_of(codec), raw.bytes.data(), rows, cols, bytes.data(), tile_bytes(codec, cols));
        spec.weights[name] = {codec, rows, cols, false, bytes.data(), bytes.size()};
        return name;
    }

    std::string vector(const std::string& name, int length) {
        const std::vector<float> values = random_row(random_, length, Values::normal);
        auto& bytes = own(name, values.size() * 4);
        std::memcpy(bytes.data(), values.data(), bytes.size());
        spec.weights[name] = {Codec::f32, 1, length, true, bytes.data(), bytes.size()};
        return name;
    }

    using Names = std::vector<std::string>;
    void op(const std::string& kind, Names reads, Names writes, Names weights = {}, Attributes attributes = {}) {
        spec.program.ops.push_back(
            {kind, std::move(reads), std::move(writes), std::move(weights), std::move(attributes), 0});
    }
    void norm(const char* x, const char* y, const std::string& name, int group) {
        op("rms_norm", {x}, {y}, {vector(name + "_norm", group)}, {{"eps", 1e-6}, {"group", int64_t{group}}});
    }
    void add(const char* a, const char* b, const char* y, double scale) {
        op("add", {a, b}, {y}, {}, {{"scale", scale}});
    }
    void rope(const char* x, int heads, int stride, int offset, int dim, bool pairs, int table) {
        op("rope", {x}, {x}, {},
           {{"heads", int64_t{heads}},
            {"stride", int64_t{stride}},
            {"offset", int64_t{offset}},
            {"dim", int64_t{dim}},
            {"pairs", pairs},
            {"table", int64_t{table}}});
    }
    void attention(Names reads, const char* o, const std::string& sinks, int cache, int kv_heads, int k_dim, int v_dim,
                   int window) {
        op("attention", std::move(reads), {o}, {sinks},
           {{"cache", int64_t{cache}},
            {"heads", int64_t{S::heads}},
            {"kv_heads", int64_t{kv_heads}},
            {"k_dim", int64_t{k_dim}},
            {"v_dim", int64_t{v_dim}},
            {"scale", 0.2},
            {"window", int64_t{window}},
            {"chunk", int64_t{0}},
            {"softcap", 0.0}});
    }
    void heads_op(const char* kind, const char* x, const char* y, Names weights, int in_stride, int in_offset,
                  int out_stride, int out_offset, Attributes more) {
        more.insert({{"heads", int64_t{S::heads}},
                     {"in_stride", int64_t{in_stride}},
                     {"in_offset", int64_t{in_offset}},
                     {"out_stride", int64_t{out_stride}},
                     {"out_offset", int64_t{out_offset}}});
        op(kind, {x}, {y}, std::move(weights), std::move(more));
    }

    Random random_;
    Codec codec_;
    std::map<std::string, std::unique_ptr<std::vector<uint8_t>>> owned_;
};

}  // namespace freetoken::test
