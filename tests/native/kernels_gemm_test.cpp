// Products: every table against the scalar twin bit by bit, the scalar twin against the contract written out here and
// against double precision, and mutations of the contract that must be noticed.
#include <algorithm>

#include "core/codec_names.h"
#include "core/float_mode.h"
#include "kernels_fixture.h"

namespace freetoken::test {
namespace {

constexpr float kUntouched = -12345.5f;

int random_cols(Random& random, Codec codec) {
    const CodecInfo& info = codec_info(codec);
    if (codec == Codec::fp8) return random.pick({1, 4, 7, 100, 127, 128, 129, 130, 132, 255, 256, 259, 515});
    if (info.kind == CodecKind::plain) return random.pick({1, 2, 3, 4, 5, 7, 8, 31, 77, 130, 259});
    if (info.cols_unit == 256) return 256 * random.pick({1, 2, 3, 5, 6});
    return info.cols_unit * random.pick({1, 2, 3, 4, 5, 6, 7, 9, 18, 33});
}

// Columns that a codec can have, near the wanted number.
int cols_near(Codec codec, int wanted) {
    const int unit = codec_info(codec).cols_unit;
    return (wanted + unit - 1) / unit * unit;
}

std::vector<std::vector<float>> random_rows(Random& random, int tokens, int cols) {
    std::vector<std::vector<float>> rows;
    for (int t = 0; t < tokens; ++t)
        rows.push_back(random_row(random, cols, static_cast<Values>(random.between(0, 9) % kValueKinds)));
    return rows;
}

// All rows of y, `ldy` apart, computed in one call or in two.
std::vector<float> multiply(const Kernels& kernels, const Packed& matrix, const PackedRows& x, const int32_t* index,
                            int tokens, size_t ldy, int split) {
    std::vector<float> y(static_cast<size_t>(tokens) * ldy, kUntouched);
    const PackedMatrix m = matrix.view();
    const int tiles = static_cast<int>(tile_count(m.rows));
    kernels.gemm(m, 0, split, x.view(index), tokens, y.data(), ldy);
    kernels.gemm(m, split, tiles, x.view(index), tokens, y.data(), ldy);
    return y;
}

bool writes(const Kernels& kernels, Codec codec) {
    Random random(1);
    const int cols = codec_info(codec).cols_unit;
    const PackedRows x(kernels, activation_form(codec), {random_row(random, cols, Values::normal)});
    return !same_bits(multiply(kernels, Packed(random_matrix(random, codec, 1, cols)), x, nullptr, 1, 1, 0)[0],
                      kUntouched);
}

// The tables that multiply `codec`: all of them, or else one test says which is missing and the others go on.
std::vector<const Kernels*> tables_with(Codec codec) {
    std::vector<const Kernels*> found;
    for (const Kernels* kernels : available_kernels())
        if (writes(*kernels, codec)) found.push_back(kernels);
    return found;
}

void compare_with_twin(Random& random, Codec codec) {
    const int rows = random.between(0, 4) == 0 ? random.pick({48, 70}) : random.between(1, 33);
    const int cols = random_cols(random, codec);
    const int tokens = random.between(1, 20);
    const Scales scales =
        random.pick({Scales::ordinary, Scales::ordinary, Scales::any, Scales::tiny, Scales::huge, Scales::zero});
    const Packed matrix(random_matrix(random, codec, rows, cols, scales));
    const auto x = random_rows(random, tokens, cols);
    std::vector<int32_t> index(static_cast<size_t>(tokens));
    for (int32_t& i : index) i = random.between(0, tokens - 1);
    const int32_t* gather = random.between(0, 1) == 0 ? nullptr : index.data();
    const size_t ldy = static_cast<size_t>(rows + random.between(0, 9));
    const int split = random.between(0, static_cast<int>(tile_count(rows)));

    const ActivationForm form = activation_form(codec);
    const Kernels& twin = *kernels_for("scalar");
    const auto expected = multiply(twin, matrix, PackedRows(twin, form, x), gather, tokens, ldy, 0);
    for (const Kernels* kernels : tables_with(codec)) {
        const auto y = multiply(*kernels, matrix, PackedRows(*kernels, form, x), gather, tokens, ldy, split);
        for (size_t i = 0; i < y.size(); ++i) {
            if (i % ldy >= static_cast<size_t>(rows)) {
                CHECK(same_bits(y[i], kUntouched), "%s %s wrote beyond row %d", kernels->name, codec_name(codec).data(),
                      rows);
            } else {
                CHECK(same_bits(y[i], expected[i]), "%s %s rows %d cols %d tokens %d: %a, twin %a", kernels->name,
                      codec_name(codec).data(), rows, cols, tokens, static_cast<double>(y[i]),
                      static_cast<double>(expected[i]));
            }
        }
    }
}

// The contract of docs/numerics.md for one row and one token, from raw weights. `mutation` spoils one detail.
enum class Mutation { none, no_fma, swapped_segments, one_segment, wrong_rounding, swapped_terms, float_scales };

bool has_half_terms(Codec codec) {
    return codec == Codec::q2_k || codec == Codec::q3_k || codec == Codec::q6_k || codec == Codec::nvfp4;
}

bool has_integer_terms(Codec codec) {
    return codec == Codec::q2_k || codec == Codec::q3_k;
}

bool has_minimum_terms(Codec codec) {
    return codec == Codec::q4_1 || codec == Codec::q5_1 || codec == Codec::q2_k || codec == Codec::q4_k ||
           codec == Codec::q5_k;
}

bool applies(Mutation mutation, Codec codec) {
    if (mutation == Mutation::wrong_rounding) return is_integer(codec);
    if (mutation == Mutation::swapped_terms)
        return has_minimum_terms(codec) || (has_half_terms(codec) && !has_integer_terms(codec));
    if (mutation == Mutation::float_scales) return has_integer_terms(codec);
    return true;
}

float add_product(float a, float b, float c, Mutation mutation) {
    volatile float product = a * b;
    return mutation == Mutation::no_fma ? product + c : std::fma(a, b, c);
}

// Activations of one block, rounded to 16 bits.
struct Rounded {
    float scale;
    int q[kBlock];
};

Rounded rounded(const float* x, Mutation mutation) {
    float largest = 0.0f;
    for (int k = 0; k < kBlock; ++k) largest = std::max(largest, std::fabs(x[k]));
    if (largest < 0x1p-110f) return {};
    Rounded out{largest / 32639.0f, {}};
    for (int k = 0; k < kBlock; ++k) {
        const float scaled = x[k] * (32639.0f / largest);
        out.q[k] = static_cast<int>(mutation == Mutation::wrong_rounding ? std::trunc(scaled) : std::nearbyint(scaled));
    }
    return out;
}

float contract_halves(const HalfTerms& terms, const int (&products)[2], const int (&sums)[2], float x_scale, float acc,
                      Mutation mutation) {
    const auto together = [](const int (&factors)[2], const int (&values)[2]) {
        return static_cast<float>(factors[0] * values[0] + factors[1] * values[1]);
    };
    const float product = together(terms.scale, products);
    const float minimum = together(terms.minimum, sums);
    const bool swapped = mutation == Mutation::swapped_terms;
    float total = swapped ? add_product(terms.d, product, -(terms.dmin * minimum), mutation)
                          : add_product(-terms.dmin, minimum, terms.d * product, mutation);
    if (mutation == Mutation::float_scales) {
        const auto scaled = [&](int half) { return terms.d * static_cast<float>(terms.scale[half]); };
        total = std::fma(scaled(1), static_cast<float>(products[1]), scaled(0) * static_cast<float>(products[0])) -
                terms.dmin * minimum;
    }
    return add_product(total, x_scale, acc, mutation);
}

float contract_block(const RawMatrix& m, int row, int b, const Rounded& x, float acc, Mutation mutation) {
    int products[2] = {};
    int sums[2] = {};
    for (int k = 0; k < kBlock; ++k) {
        products[k / 16] += x.q[k] * static_cast<int>(raw_weight(m, row, b * kBlock + k).number);
        sums[k / 16] += x.q[k];
    }
    if (has_integer_terms(m.codec()))
        return contract_halves(half_terms(m, row, b), products, sums, x.scale, acc, mutation);
    const Weight first = raw_weight(m, row, b * kBlock);
    const Weight second = raw_weight(m, row, b * kBlock + 16);
    struct Term {
        float factor;
        int sum;
    };
    std::vector<Term> terms;
    if (has_half_terms(m.codec())) {
        terms = {{first.scale, products[0]}, {second.scale, products[1]}};
    } else {
        terms = {{first.scale, products[0] + products[1]}};
        if (has_minimum_terms(m.codec())) terms.push_back({first.minimum, sums[0] + sums[1]});
    }
    if (mutation == Mutation::swapped_terms) std::swap(terms.front(), terms.back());
    for (const Term& term : terms)
        acc = add_product(term.factor * x.scale, static_cast<float>(term.sum), acc, mutation);
    return acc;
}

float contract_integer(const RawMatrix& m, int row, const std::vector<float>& x, Mutation mutation) {
    const int blocks = m.cols / kBlock;
    float segment[4] = {};
    for (int s = 0; s < 4; ++s) {
        int begin = s * blocks / 4;
        int end = (s + 1) * blocks / 4;
        if (mutation == Mutation::one_segment) {
            begin = 0;
            end = s == 0 ? blocks : 0;
        }
        for (int b = begin; b < end; ++b)
            segment[s] = contract_block(m, row, b, rounded(x.data() + std::ptrdiff_t{b} * kBlock, mutation), segment[s],
                                        mutation);
    }
    if (mutation == Mutation::swapped_segments) std::swap(segment[1], segment[2]);
    return ((segment[0] + segment[1]) + (segment[2] + segment[3])) * raw_factor(m, row);
}

// Four accumulators over columns [begin, end); a plain weight is its scale, a scaled one its number.
float contract_columns(const RawMatrix& m, int row, int begin, int end, const std::vector<float>& x,
                       Mutation mutation) {
    float acc[4] = {};
    for (int k = begin; k < end; ++k) {
        float& a = acc[mutation == Mutation::one_segment ? 0 : k % 4];
        const Weight w = raw_weight(m, row, k);
        a = add_product(is_plain(m.form) ? w.scale : w.number, x[static_cast<size_t>(k)], a, mutation);
    }
    if (mutation == Mutation::swapped_segments) std::swap(acc[1], acc[2]);
    return (acc[0] + acc[1]) + (acc[2] + acc[3]);
}

float contract(const RawMatrix& m, int row, const std::vector<float>& x, Mutation mutation) {
    if (is_integer(m.codec())) return contract_integer(m, row, x, mutation);
    if (is_plain(m.form)) return contract_columns(m, row, 0, m.cols, x, mutation);
    const int block = form_info(m.form).block;
    float acc = 0.0f;
    for (int begin = 0; begin < m.cols; begin += block) {
        const float sum = contract_columns(m, row, begin, std::min(begin + block, m.cols), x, mutation);
        acc = add_product(raw_weight(m, row, begin).scale, sum, acc, mutation);
    }
    return acc * raw_factor(m, row);
}

// How many of `cases` random rows differ from the scalar kernel.
int differing_rows(Codec codec, Mutation mutation, int cases) {
    Random random(77);
    const Kernels& twin = *kernels_for("scalar");
    int differing = 0;
    for (int i = 0; i < cases; ++i) {
        const int cols = cols_near(codec, random.between(160, 640));
        const RawMatrix raw = random_matrix(random, codec, 1, cols);
        const auto x = random_row(random, cols, Values::normal);
        float y = 0.0f;
        const PackedRows packed(twin, activation_form(codec), {x});
        twin.gemm(Packed(raw).view(), 0, 1, packed.view(), 1, &y, 1);
        differing += same_bits(y, contract(raw, 0, x, mutation)) ? 0 : 1;
    }
    return differing;
}

}  // namespace

FREETOKEN_TEST(every_table_has_every_codec) {
    for (const CodecInfo& info : kCodecs)
        for (const Kernels* kernels : available_kernels())
            CHECK(writes(*kernels, info.codec), "%s does not multiply %s", kernels->name,
                  codec_name(info.codec).data());
}

FREETOKEN_TEST(every_table_gives_the_bits_of_the_scalar_twin) {
    for (const CodecInfo& info : kCodecs) {
        Random random(1000 + static_cast<uint64_t>(info.codec));
        for (int i = 0; i < 150; ++i) compare_with_twin(random, info.codec);
    }
}

FREETOKEN_TEST(every_count_of_tokens_gives_the_bits_of_one_token) {
    Random random(5);
    for (const CodecInfo& info : kCodecs) {
        const int cols = cols_near(info.codec, is_float(info.codec) ? 133 : 5 * kBlock);
        const Packed matrix(random_matrix(random, info.codec, 40, cols));
        const auto rows = random_rows(random, 20, cols);
        for (const Kernels* kernels : tables_with(info.codec)) {
            const PackedRows x(*kernels, activation_form(info.codec), rows);
            std::vector<float> single;
            for (int32_t t = 0; t < 20; ++t)
                for (float y : multiply(*kernels, matrix, x, &t, 1, 40, 1)) single.push_back(y);
            for (int tokens = 1; tokens <= 20; ++tokens) {
                const auto y = multiply(*kernels, matrix, x, nullptr, tokens, 40, 2);
                CHECK(std::memcmp(y.data(), single.data(), y.size() * sizeof(float)) == 0, "%s %s, %d tokens",
                      kernels->name, codec_name(info.codec).data(), tokens);
            }
        }
    }
}

FREETOKEN_TEST(the_scalar_twin_follows_the_contract) {
    for (const CodecInfo& info : kCodecs) {
        const int differing = differing_rows(info.codec, Mutation::none, 200);
        CHECK(differing == 0, "%s: %d of 200 rows differ", codec_name(info.codec).data(), differing);
    }
}

FREETOKEN_TEST(a_change_of_the_contract_is_noticed) {
    for (const CodecInfo& info : kCodecs)
        for (const Mutation mutation : {Mutation::no_fma, Mutation::swapped_segments, Mutation::one_segment,
                                        Mutation::wrong_rounding, Mutation::swapped_terms, Mutation::float_scales}) {
            if (!applies(mutation, info.codec)) continue;
            CHECK(differing_rows(info.codec, mutation, 200) > 0, "%s, mutation %d passes for the contract",
                  codec_name(info.codec).data(), static_cast<int>(mutation));
        }
}

FREETOKEN_TEST(products_are_near_double_precision) {
    Random random(9);
    for (const CodecInfo& info : kCodecs) {
        const int cols = 512;
        const RawMatrix raw = random_matrix(random, info.codec, 20, cols);
        const Packed matrix(raw);
        const auto x = random_row(random, cols, Values::outliers);
        for (const Kernels* kernels : tables_with(info.codec)) {
            std::vector<float> y(20);
            const PackedRows packed(*kernels, activation_form(info.codec), {x});
            kernels->gemm(matrix.view(), 0, 2, packed.view(), 1, y.data(), 20);
            for (int r = 0; r < 20; ++r) {
                double exact = 0.0;
                double bound = 0.0;
                for (int b = 0; b < cols; b += kBlock) {
                    double largest = 0.0;
                    for (int k = b; k < b + kBlock; ++k)
                        largest = std::max(largest, std::fabs(static_cast<double>(x[static_cast<size_t>(k)])));
                    for (int k = b; k < b + kBlock; ++k) {
                        const double w = raw_value(raw, r, k);
                        exact += w * x[static_cast<size_t>(k)];
                        // Half a step of the activation's rounding, and f32 rounding of the sums.
                        bound += std::fabs(w) * (is_float(info.codec) ? 0.0 : largest / 32639 * 0.5001);
                        bound += std::fabs(w * x[static_cast<size_t>(k)]) * 1e-6;
                    }
                }
                const double error = std::fabs(static_cast<double>(y[static_cast<size_t>(r)]) - exact);
                CHECK(error <= bound, "%s %s: error %g, bound %g", kernels->name, codec_name(info.codec).data(), error,
                      bound);
            }
        }
    }
}

FREETOKEN_TEST(a_token_that_is_not_finite_spoils_only_itself) {
    Random random(21);
    for (const CodecInfo& info : kCodecs)
        for (const float poison : {INFINITY, -INFINITY, NAN, float_of(0xFFC12345u), float_of(0x7F800001u)})
            for (const Kernels* kernels : tables_with(info.codec)) {
                const int cols = cols_near(info.codec, 4 * kBlock);
                const int rows = 19;
                auto x = random_rows(random, 9, cols);
                const Packed matrix(random_matrix(random, info.codec, rows, cols));
                const ActivationForm form = activation_form(info.codec);
                const auto clean = multiply(*kernels, matrix, PackedRows(*kernels, form, x), nullptr, 9, rows, 0);
                x[4][37] = poison;
                const auto y = multiply(*kernels, matrix, PackedRows(*kernels, form, x), nullptr, 9, rows, 0);
                for (size_t i = 0; i < y.size(); ++i) {
                    if (i / rows != 4) {
                        CHECK(same_bits(y[i], clean[i]), "%s %s: token %zu changed", kernels->name,
                              codec_name(info.codec).data(), i / rows);
                    } else if (!is_float(info.codec)) {
                        CHECK(same_bits(y[i], float_of(kCanonicalNan)), "%s %s: %a", kernels->name,
                              codec_name(info.codec).data(), static_cast<double>(y[i]));
                    } else if (y[i] != y[i]) {
                        CHECK(same_bits(y[i], float_of(kCanonicalNan)), "%s %s: a NaN of another form", kernels->name,
                              codec_name(info.codec).data());
                    }
                }
            }
}

FREETOKEN_TEST(long_rows_and_many_tokens) {
    // More tokens than the chunk that fits the second cache, and tiles larger than the first one.
    Random random(31);
    for (const Codec codec :
         {Codec::q4_0, Codec::q8_0, Codec::q2_k, Codec::q6_k, Codec::nvfp4, Codec::fp8, Codec::bf16}) {
        const int cols = 4096;
        const int tokens = 70;
        const Packed matrix(random_matrix(random, codec, 17, cols));
        const auto x = random_rows(random, tokens, cols);
        const Kernels& twin = *kernels_for("scalar");
        const auto expected =
            multiply(twin, matrix, PackedRows(twin, activation_form(codec), x), nullptr, tokens, 17, 0);
        for (const Kernels* kernels : tables_with(codec)) {
            const auto y =
                multiply(*kernels, matrix, PackedRows(*kernels, activation_form(codec), x), nullptr, tokens, 17, 1);
            CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0, "%s %s", kernels->name,
                  codec_name(codec).data());
        }
    }
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    const freetoken::FloatMode mode;
    return freetoken::test::run_tests(argc, argv);
}
