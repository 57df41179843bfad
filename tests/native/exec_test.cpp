// The executor: equal bits for every batching, thread count, instruction set
// and page order; errors; the cache.
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "core/codec_names.h"
#include "exec_runs.h"

namespace freetoken::test {
namespace {

#ifdef FREETOKEN_SIM_THREADS  // the thread sanitizer is slow, and threads share the work of any codec alike
constexpr Codec kTried[] = {Codec::f32, Codec::q4_0, Codec::fp8};  // one of every file of kernels
#else
// Codecs that fit the tiny model, and every kind of header.
constexpr Codec kTried[] = {Codec::f32,   Codec::f16,   Codec::bf16,     Codec::q8_0,      Codec::q4_0, Codec::q4_1,
                            Codec::mxfp4, Codec::nvfp4, Codec::int4_32z, Codec::int4_128z, Codec::fp8,  Codec::mxfp8};
#endif
constexpr int kLong = 300;  // positions: more than one block of attention
constexpr int kPages = 19;  // that hold them

// The logits of a sequence run alone, in one piece, by one thread in scalar
// code.
Logits plain(const TinyModel& model, const std::vector<int32_t>& tokens, bool half = true) {
    const auto executor = make_executor(model, {.half = half});
    Sequenced s{tokens, pages_from(0, kPages), {kLong}};
    run_all(*executor, {&s});
    return s.logits;
}

bool all_finite(const Logits& logits) {
    return std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace

FREETOKEN_TEST(batching_threads_isa_and_pages_change_no_bit) {
    for (const Codec codec : kTried) {
        const TinyModel model(codec);
        const auto long_tokens = random_tokens(2, kLong);
        const auto short_tokens = random_tokens(3, 40);
        const Logits long_logits = plain(model, long_tokens);
        const Logits short_logits = plain(model, short_tokens);
        CHECK(all_finite(long_logits), "%s", codec_name(codec).data());
        int threads = 1;
        for (const Kernels* kernels : available_kernels()) {
            for (const std::vector<int>& chunks : {std::vector<int>{kLong}, {17, 1, 64, 3}, {250, 1, 1, 1, 5}}) {
                threads = threads % 4 + 1;
                const auto executor = make_executor(model, {.isa = kernels->name, .threads = threads});
                Sequenced first{long_tokens, pages_from(60, kPages, -3), chunks};
                Sequenced second{short_tokens, pages_from(1, 3, 3), {7, 2, 1}};
                run_all(*executor, {&second, &first});
                const char* name = codec_name(codec).data();
                CHECK(first_difference(first.logits, long_logits) < 0, "%s %s %d threads, chunks of %d: value %d", name,
                      kernels->name, threads, chunks[0], first_difference(first.logits, long_logits));
                CHECK(first_difference(second.logits, short_logits) < 0, "%s %s %d threads: value %d", name,
                      kernels->name, threads, first_difference(second.logits, short_logits));
            }
        }
    }
}

FREETOKEN_TEST(a_cache_in_f32_gives_other_bits_and_the_same_for_all) {
    const TinyModel model(Codec::q4_0);
    const auto tokens = random_tokens(4, 60);
    const Logits expected = plain(model, tokens, false);
    CHECK(first_difference(expected, plain(model, tokens, true)) >= 0, "f16 changes nothing, so nothing is tested");
    for (const Kernels* kernels : available_kernels()) {
        const auto executor = make_executor(model, {.isa = kernels->name, .threads = 2, .half = false});
        Sequenced s{tokens, pages_from(5, 4), {13}};
        run_all(*executor, {&s});
        CHECK(first_difference(s.logits, expected) < 0, "%s", kernels->name);
    }
}

FREETOKEN_TEST(small_phases_done_by_one_thread_give_the_same_bits) {
    const TinyModel model(Codec::q4_1);
    const auto tokens = random_tokens(5, 50);
    const auto executor = make_executor(model, {.isa = best_kernels().name, .threads = 3, .serial_cost = 5000});
    Sequenced s{tokens, pages_from(0, 4), {1, 20}};
    run_all(*executor, {&s});
    CHECK(first_difference(s.logits, plain(model, tokens)) < 0, "bits differ");
}

FREETOKEN_TEST(a_copied_page_and_a_resized_cache_keep_the_context) {
    const TinyModel model(Codec::bf16);
    const auto tokens = random_tokens(6, 64);
    const Logits expected = plain(model, tokens);
    const auto executor = make_executor(model, {.isa = best_kernels().name, .threads = 2, .pages = 8});
    Sequenced s{tokens, {4, 5, 6, 7}, {40}};
    std::vector<Sequenced*> one = {&s};
    run_turn(*executor, one, 0);
    for (int page = 0; page < 3; ++page) executor->context().copy(BlockKind::page, 4 + page, page);
    executor->context().resize({3});
    executor->context().resize({40});
    s.pages = {0, 1, 2, 39};
    s.chunks = {5};
    run_all(*executor, one);
    CHECK(first_difference(s.logits, expected) < 0, "the context was lost");
}

FREETOKEN_TEST(a_cache_that_finds_no_memory_stays_as_it_was) {
    const TinyModel model(Codec::f32);
    const auto executor = make_executor(model, {.pages = 4});
    bool refused = false;
    try {
        executor->context().resize({2'000'000'000});
    } catch (const std::bad_alloc&) {
        refused = true;
    }
    CHECK(refused && executor->context().room().pages == 4, "%d pages", executor->context().room().pages);
    Sequenced s{random_tokens(7, 64), pages_from(0, 4), {64}};
    run_all(*executor, {&s});
    CHECK(first_difference(s.logits, plain(model, s.tokens)) < 0, "the cache was damaged");
}

FREETOKEN_TEST(a_token_that_is_not_finite_spoils_nobody_else) {
    for (const float bad : {NAN, INFINITY}) {
        TinyModel model(Codec::q8_0);
        const Logits clean_short = plain(model, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
        model.set_embedding(11, 3, bad);
        for (const Kernels* kernels : available_kernels()) {
            const auto executor = make_executor(model, {.isa = kernels->name, .threads = 2});
            Sequenced spoiled{{1, 2, 3, 4, 11, 6, 7}, {0}, {7}};
            Sequenced clean{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {1}, {10}};
            run_all(*executor, {&spoiled, &clean});
            CHECK(first_difference(clean.logits, clean_short) < 0, "%s: the other sequence changed", kernels->name);
            const Logits before(spoiled.logits.begin(), spoiled.logits.begin() + 4 * TinyShape::vocab);
            const Logits expected(clean_short.begin(), clean_short.begin() + 4 * TinyShape::vocab);
            CHECK(first_difference(before, expected) < 0, "%s: earlier tokens changed", kernels->name);
            const float after = spoiled.logits[4 * TinyShape::vocab];
            CHECK(bits_of(after) == kCanonicalNan, "%s: %08x", kernels->name, bits_of(after));
        }
    }
}

FREETOKEN_TEST(running_in_parts_gives_what_running_at_once_gives) {
    const TinyModel model(Codec::mxfp4);
    const auto tokens = random_tokens(8, 30);
    const Logits expected = plain(model, tokens);
    const auto executor = make_executor(model, {.isa = best_kernels().name, .threads = 2});
    std::vector<int32_t> positions(30), rows(30), starts = {0, 30}, pages = {0, 1};
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(rows.begin(), rows.end(), 0);
    const BatchView batch = {tokens, positions, starts, {pages}, rows};
    Logits logits(expected.size());
    for (size_t first = 0; first < executor->operations(); first += 5)
        executor->step(batch, first, std::min(first + 5, executor->operations()), logits.data());
    CHECK(first_difference(logits, expected) < 0, "bits differ");
    CHECK(executor->buffer("x").width == TinyShape::hidden, "the residual stream can be read");
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
