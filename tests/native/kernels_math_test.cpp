// The scalar arithmetic, the gated units, the floating-point mode and the choice of a table.
#include <algorithm>

#include "core/float_mode.h"
#include "core/numerics.h"
#include "kernels_fixture.h"

namespace freetoken::test {
namespace {

std::vector<float> awkward_values(Random& random, int count) {
    std::vector<float> v = {0.0f,  -0.0f,  1.0f,      -1.0f,   87.5f,    -88.5f,    1e30f, -1e30f,
                            3e38f, -3e38f, 1e-40f,    -1e-40f, INFINITY, -INFINITY, NAN,   float_of(0xFFC12345u),
                            7.0f,  -7.0f,  7.0000005f};
    while (static_cast<int>(v.size()) < count)
        v.push_back(random.normal() * std::pow(10.0f, static_cast<float>(random.between(-3, 2))));
    v.resize(static_cast<size_t>(count));
    for (size_t i = v.size(); i-- > 1;) std::swap(v[i], v[static_cast<size_t>(random.between(0, static_cast<int>(i)))]);
    return v;
}

constexpr Glu kUnits[] = {{GluKind::silu, 1.0f, 0.0f},
                          {GluKind::clamped_silu, 1.702f, 7.0f},
                          {GluKind::relu2, 1.0f, 0.0f},
                          {GluKind::limited_silu, 1.0f, 7.0f},
                          {GluKind::capped_silu, 1.0f, 7.0f},
                          {GluKind::gelu_tanh, 1.0f, 0.0f},
                          {GluKind::gelu, 1.0f, 0.0f}};

}  // namespace

FREETOKEN_TEST(exp_is_within_one_ulp) {
    double worst = 0.0;
    for (int i = -870000; i <= 880000; i += 3) {
        const float x = static_cast<float>(i) * 1e-4f;
        const double exact = std::exp(static_cast<double>(x));
        const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
        worst = std::max(worst, std::fabs(static_cast<double>(freetoken::exp(x)) - exact) / ulp);
    }
    CHECK(worst < 0.95, "%g ulp", worst);
    CHECK(freetoken::exp(-200.0f) == freetoken::exp(-87.0f) && freetoken::exp(200.0f) == freetoken::exp(88.0f),
          "not clamped");
    CHECK(freetoken::exp(NAN) != freetoken::exp(NAN), "NaN is lost");
}

FREETOKEN_TEST(gated_units_are_near_double_precision) {
    Random random(12);
    for (int i = 0; i < 5000; ++i) {
        const float gate = 5.0f * random.normal();
        const float up = 5.0f * random.normal();
        const double silu = gate / (1.0 + std::exp(-static_cast<double>(gate))) * up;
        CHECK(std::fabs(static_cast<double>(silu_glu(gate, up)) - silu) <= 4e-7 * std::fabs(silu), "silu(%g) * %g",
              static_cast<double>(gate), static_cast<double>(up));
        const double g = std::min(static_cast<double>(gate), 7.0);
        const double u = std::clamp(static_cast<double>(up), -7.0, 7.0);
        const double clamped = (u + 1.0) * g / (1.0 + std::exp(-static_cast<double>(1.702f) * g));
        CHECK(std::fabs(static_cast<double>(clamped_silu_glu(gate, up, 1.702f, 7.0f)) - clamped) <=
                  2e-6 * std::fabs(clamped) + 1e-7,
              "clamped %g %g", static_cast<double>(gate), static_cast<double>(up));
    }
}

FREETOKEN_TEST(gelus_are_near_double_precision) {
    const double root = std::sqrt(2.0);
    for (int i = -12000; i <= 12000; ++i) {
        const float gate = static_cast<float>(i) * 1e-3f;
        const double x = static_cast<double>(gate);
        const double exact = 0.5 * x * std::erfc(-x / root);
        CHECK(std::fabs(static_cast<double>(gelu_glu(gate, 1.0f)) - exact) <= 1e-6 * std::fabs(exact) + 1e-12,
              "gelu(%g)", x);
        const double half = 0.5 * x * (1.0 + std::tanh(2.0 / root / std::sqrt(M_PI) * (x + 0.044715 * x * x * x)));
        CHECK(std::fabs(static_cast<double>(gelu_tanh_glu(gate, 1.0f)) - half) <= 1e-6 * std::fabs(half) + 1e-6,
              "gelu_tanh(%g)", x);
    }
    CHECK(gelu_glu(NAN, 1.0f) != gelu_glu(NAN, 1.0f), "NaN is lost");
}

FREETOKEN_TEST(gated_units_are_the_same_in_every_table) {
    Random random(13);
    for (int n = 1; n <= 70; ++n)
        for (const Glu& unit : kUnits) {
            const auto gate = awkward_values(random, n);
            const auto up = awkward_values(random, n);
            for (const Kernels* kernels : available_kernels()) {
                std::vector<float> h(static_cast<size_t>(n) + 1, 5.0f);
                kernels->glu(unit, gate.data(), up.data(), n, h.data());
                for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
                    const float expected = glu_value(unit, gate[i], up[i]);
                    CHECK(same_bits(h[i], expected), "%s glu(%a, %a) = %a, not %a", kernels->name,
                          static_cast<double>(gate[i]), static_cast<double>(up[i]), static_cast<double>(h[i]),
                          static_cast<double>(expected));
                }
                CHECK(h[static_cast<size_t>(n)] == 5.0f, "%s wrote beyond %d values", kernels->name, n);
            }
        }
}

FREETOKEN_TEST(a_unit_without_a_gate_needs_none) {
    Random random(15);
    for (const int n : {1, 15, 16, 17, 70}) {
        const auto up = awkward_values(random, n);
        for (const Kernels* kernels : available_kernels()) {
            std::vector<float> h(static_cast<size_t>(n), 5.0f);
            kernels->glu({GluKind::relu2}, nullptr, up.data(), n, h.data());
            for (size_t i = 0; i < h.size(); ++i)
                CHECK(same_bits(h[i], relu2(up[i])), "%s relu2(%a) = %a", kernels->name, static_cast<double>(up[i]),
                      static_cast<double>(h[i]));
        }
    }
    CHECK(relu2(-3.0f) == 0.0f && relu2(3.0f) == 9.0f, "relu2 is not max(x, 0)^2");
    CHECK(relu2(NAN) != relu2(NAN), "NaN is lost");
}

FREETOKEN_TEST(gated_units_read_tiles_in_turn_and_add_biases) {
    Random random(14);
    for (int n = 1; n <= 70; ++n)
        for (int biases = 0; biases < 4; ++biases)
            for (const Glu& unit : kUnits) {
                const auto gate = awkward_values(random, n);
                const auto up = awkward_values(random, n);
                const auto gate_bias = random_row(random, n, Values::normal);
                const auto up_bias = random_row(random, n, Values::normal);
                std::vector<float> tiles(static_cast<size_t>((n + 15) / 16 * 32), NAN);
                std::vector<float> gate_sum = gate;
                std::vector<float> up_sum = up;
                for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
                    tiles[i / 16 * 32 + i % 16] = gate[i];
                    tiles[i / 16 * 32 + 16 + i % 16] = up[i];
                    if ((biases & 1) != 0) gate_sum[i] = gate[i] + gate_bias[i];
                    if ((biases & 2) != 0) up_sum[i] = up[i] + up_bias[i];
                }
                std::vector<float> expected(static_cast<size_t>(n));
                kernels_for("scalar")->glu(unit, gate_sum.data(), up_sum.data(), n, expected.data());
                for (const Kernels* kernels : available_kernels()) {
                    std::vector<float> h(static_cast<size_t>(n) + 1, 5.0f);
                    kernels->glu_tiles(unit, tiles.data(), (biases & 1) != 0 ? gate_bias.data() : nullptr,
                                       (biases & 2) != 0 ? up_bias.data() : nullptr, n, h.data());
                    CHECK(std::memcmp(h.data(), expected.data(), expected.size() * sizeof(float)) == 0,
                          "%s n %d biases %d", kernels->name, n, biases);
                    CHECK(h[static_cast<size_t>(n)] == 5.0f, "%s wrote beyond %d values", kernels->name, n);
                }
            }
}

FREETOKEN_TEST(lane_sums_follow_the_definition) {
    Random random(15);
    for (int n = 0; n <= 100; ++n) {
        const auto a = random_row(random, n, Values::normal);
        const auto b = random_row(random, n, Values::normal);
        float sum[16] = {};
        float dot[16] = {};
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            sum[i % 16] += a[i];
            dot[i % 16] = std::fma(a[i], b[i], dot[i % 16]);
        }
        for (int width = 8; width > 0; width /= 2)
            for (int l = 0; l < width; ++l) {
                sum[l] += sum[l + width];
                dot[l] += dot[l + width];
            }
        CHECK(same_bits(lane_sum(a.data(), static_cast<size_t>(n)), sum[0]), "sum of %d", n);
        CHECK(same_bits(lane_dot(a.data(), b.data(), static_cast<size_t>(n)), dot[0]), "dot of %d", n);
    }
}

FREETOKEN_TEST(small_floats_are_decoded_exactly) {
    for (int h = 0; h < 0x10000; ++h) {
        const int exponent = h >> 10 & 31;
        if (exponent == 31) continue;
        const double magnitude =
            exponent == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), exponent - 25);
        const float value = half_to_float(static_cast<uint16_t>(h));
        CHECK(static_cast<double>(value) == ((h & 0x8000) != 0 ? -magnitude : magnitude), "half %04x", h);
    }
    CHECK(half_to_float(0x7C00) == INFINITY && half_to_float(0xFC00) == -INFINITY &&
              half_to_float(0x7E00) != half_to_float(0x7E00),
          "halves that are not finite");
    for (int e = 0; e < 255; ++e)
        CHECK(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(e))) == std::ldexp(1.0, e - 127), "e8m0 %d", e);
}

FREETOKEN_TEST(the_float_mode_is_set_and_restored) {
#if defined(__x86_64__)
    const unsigned flush = __builtin_ia32_stmxcsr() | 0x8040;
    __builtin_ia32_ldmxcsr(flush);
    volatile float small = 1e-40f;
    CHECK(small * 1.0f == 0.0f, "the control: flushing was not on");
    {
        const FloatMode mode;
        CHECK(small * 1.0f != 0.0f, "subnormals are flushed");
    }
    CHECK(__builtin_ia32_stmxcsr() == flush || (__builtin_ia32_stmxcsr() & ~0x3Fu) == (flush & ~0x3Fu),
          "the old mode is lost");
    __builtin_ia32_ldmxcsr(0x1F80);
#endif
}

FREETOKEN_TEST(reading_depends_on_every_byte) {
    Random random(16);
    std::vector<uint8_t> data(4096);
    for (uint8_t& b : data) b = static_cast<uint8_t>(random.bits());
    const uint64_t digest = kernels_for("scalar")->read(data.data(), data.size());
    for (const Kernels* kernels : available_kernels()) {
        CHECK(kernels->read(data.data(), data.size()) == digest, "%s", kernels->name);
        for (size_t i = 0; i < data.size(); i += 61) {
            data[i] ^= 1;
            CHECK(kernels->read(data.data(), data.size()) != digest, "%s missed byte %zu", kernels->name, i);
            data[i] ^= 1;
        }
    }
}

FREETOKEN_TEST(tables_are_found_by_name) {
    CHECK(kernels_for("scalar") == available_kernels().front(), "scalar is everywhere");
    CHECK(&best_kernels() == available_kernels().back(), "the best is the last");
    CHECK(kernels_for("avx1024") == nullptr && kernels_for("") == nullptr, "unknown names");
    for (const Kernels* kernels : available_kernels())
        CHECK(kernels_for(kernels->name) == kernels, "%s", kernels->name);
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    const freetoken::FloatMode mode;
    return freetoken::test::run_tests(argc, argv);
}
