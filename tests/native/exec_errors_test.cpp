// Programs, weights and batches that do not fit are refused with the name of
// what is wrong.
#include <functional>
#include <string>

#include "exec_runs.h"

namespace freetoken::test {
namespace {

std::string refusal(const std::function<void(TinyModel&)>& change) {
    TinyModel model(Codec::q4_0);
    change(model);
    try {
        make_executor(model, {});
    } catch (const ProgramError& error) {
        return error.what();
    }
    return "accepted";
}

bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

void expect(const char* part, const std::function<void(TinyModel&)>& change) {
    const std::string text = refusal(change);
    CHECK(has(text, part), "\"%s\" does not say \"%s\"", text.c_str(), part);
}

struct Arrays {
    std::vector<int32_t> tokens = {1, 2, 3}, positions = {0, 1, 2}, starts = {0, 3}, pages = {0}, rows = {2};
};

void expect_batch(const char* part, const std::function<void(Arrays&)>& change) {
    const TinyModel model(Codec::f32);
    const auto executor = make_executor(model, {.pages = 2});
    Arrays a;
    change(a);
    std::string text = "accepted";
    std::vector<float> logits(TinyShape::vocab * 1000);
    try {
        executor->step({a.tokens, a.positions, a.starts, {a.pages}, a.rows}, 0, executor->operations(), logits.data());
    } catch (const std::invalid_argument& error) {
        text = error.what();
    }
    CHECK(has(text, part), "\"%s\" does not say \"%s\"", text.c_str(), part);
}

}  // namespace

FREETOKEN_TEST(the_unchanged_model_and_batch_are_accepted) {
    expect("accepted", [](TinyModel&) {});
    expect_batch("accepted", [](Arrays&) {});
}

FREETOKEN_TEST(programs_that_do_not_fit_are_refused_by_name) {
    expect("operation 2 (mystery, layer 0)", [](TinyModel& m) { m.spec.program.ops[2].kind = "mystery"; });
    expect("there is no buffer nowhere", [](TinyModel& m) { m.op_of("add").reads[1] = "nowhere"; });
    expect("the weight q is missing", [](TinyModel& m) { m.spec.weights.erase("q"); });
    expect("the weight sinks is missing", [](TinyModel& m) { m.spec.weights.erase("sinks"); });
    expect("the weight q is short", [](TinyModel& m) { m.spec.weights["q"].bytes -= 1; });
    expect("the weight q_bias has 95 values", [](TinyModel& m) { m.spec.weights["q_bias"].cols = 95; });
    expect("buffer k has 48 columns instead of 47", [](TinyModel& m) { m.spec.weights["k"].rows = 47; });
    expect("the attribute scale is missing", [](TinyModel& m) { m.op_of("add").attributes.erase("scale"); });
    expect("the attribute eps must be a number", [](TinyModel& m) { m.op_of("rms_norm").attributes["eps"] = true; });
    expect("the scoring hardmax is unknown", [](TinyModel& m) { m.op_of("route").attributes["scoring"] = "hardmax"; });
    expect("the activation tanh is unknown", [](TinyModel& m) { m.op_of("glu").attributes["activation"] = "tanh"; });
    expect("there is no rope table 9", [](TinyModel& m) { m.op_of("rope").attributes["table"] = int64_t{9}; });
    expect("there is no cache 2", [](TinyModel& m) { m.op_of("attention").attributes["cache"] = int64_t{2}; });
    expect("takes 1 inputs", [](TinyModel& m) { m.op_of("rms_norm").reads.clear(); });
    expect("there is no output buffer", [](TinyModel& m) { m.spec.program.output = "nowhere"; });
    expect("reaches beyond",
           [](TinyModel& m) { m.spec.program.buffers.push_back({"view", 90, false, false, "x", 10}); });
}

FREETOKEN_TEST(experts_that_do_not_fit_are_refused_by_name) {
    expect("no bank holds the experts of MoE layer 1", [](TinyModel& m) { m.spec.banks.pop_back(); });
    expect("lies beyond its bank", [](TinyModel& m) { m.spec.banks[0].shards[1].bytes -= 4096; });
    expect("unknown field bias", [](TinyModel& m) { m.spec.banks[1].fields[4].name = "bias"; });
    expect("need down", [](TinyModel& m) { m.spec.banks[0].fields[1].name = "up"; });
    expect("of the wrong kind", [](TinyModel& m) { m.spec.banks[0].fields[1].vector = true; });
    expect("beyond its record", [](TinyModel& m) { m.spec.banks[0].record_bytes = 4096; });
    expect("two banks hold", [](TinyModel& m) { m.spec.banks[1].layers = {0}; });
    expect("that do not fit its activation",
           [](TinyModel& m) { m.op_of("experts").attributes["activation"] = "relu2"; });
    expect("an activation without a gate", [](TinyModel& m) { m.op_of("glu").attributes["activation"] = "relu2"; });
    expect("without a gate have a bias", [](TinyModel& m) {
        std::erase_if(m.spec.banks[1].fields, [](const FieldSpec& field) { return field.name == "gate"; });
    });
    expect("either gate_up or up", [](TinyModel& m) {
        std::erase_if(m.spec.banks[1].fields, [](const FieldSpec& field) { return field.name == "up"; });
    });
}

FREETOKEN_TEST(batches_that_do_not_fit_are_refused_by_name) {
    expect_batch("token 50 of a vocabulary of 50", [](Arrays& a) { a.tokens[1] = TinyShape::vocab; });
    expect_batch("token -1", [](Arrays& a) { a.tokens[0] = -1; });
    expect_batch("a gap in its positions", [](Arrays& a) { a.positions[2] = 3; });
    expect_batch("starts at position -1", [](Arrays& a) { a.positions = {-1, 0, 1}; });
    expect_batch("uses page 2 of 2", [](Arrays& a) { a.pages[0] = 2; });
    expect_batch("needs 2 pages and has 1", [](Arrays& a) { a.positions = {14, 15, 16}; });
    expect_batch("logits of token 3", [](Arrays& a) { a.rows[0] = 3; });
    expect_batch("do not fit together", [](Arrays& a) { a.starts = {0, 2}; });
    expect_batch("there is room for 320", [](Arrays& a) { a.tokens.resize(321); });
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
