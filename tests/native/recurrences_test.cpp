// The kernels of recurrences and of the rows around them: every table against the scalar twin, bit for bit.
#include <algorithm>
#include <cmath>

#include "core/float_mode.h"
#include "kernels_fixture.h"
#include "recurrence_twin.h"

namespace freetoken::test {
namespace {

constexpr GateKind kGates[] = {GateKind::none, GateKind::sigmoid, GateKind::silu};

const Operations& operations_of(const Kernels* kernels) {
    return *operations_for(kernels->name);
}

Floats randoms(Random& random, size_t n, float scale = 1.0f) {
    Floats values(n);
    for (float& value : values) value = scale * random.normal();
    return values;
}

// Some ordinary values, and now and then one that is not.
Floats awkward(Random& random, size_t n) {
    Floats values = randoms(random, n, 3.0f);
    for (float& value : values) {
        if (random.between(0, 15) == 0) value = random.pick({0.0f, -0.0f, 1e-40f, -90.0f, 95.0f, 1e30f, INFINITY, NAN});
    }
    return values;
}

void check_same(const char* table, const char* what, const Floats& found, const Floats& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i)
        CHECK(same_bits(found[i], wanted[i]), "%s %s [%zu] = %a, not %a", table, what, i, static_cast<double>(found[i]),
              static_cast<double>(wanted[i]));
}

Floats slice(const Floats& values, size_t begin, size_t n) {
    return Floats(values.begin() + static_cast<std::ptrdiff_t>(begin),
                  values.begin() + static_cast<std::ptrdiff_t>(begin + n));
}

}  // namespace

FREETOKEN_TEST(softplus_is_near_double_precision) {
    double worst = 0.0;
    for (int i = -850000; i <= 850000; i += 7) {
        const float x = static_cast<float>(i) * 1e-4f;
        const double exact = std::log1p(std::exp(static_cast<double>(x)));
        worst = std::max(worst, std::fabs(static_cast<double>(softplus(x)) - exact) / exact);
    }
    CHECK(worst < 3e-7, "%g", worst);
    CHECK(softplus(INFINITY) == INFINITY && softplus(1e30f) == 1e30f && softplus(-1e30f) < 2e-38f, "at the ends");
    CHECK(softplus(NAN) != softplus(NAN), "NaN is lost");
}

FREETOKEN_TEST(rows_are_the_same_in_every_table) {
    Random random(31);
    for (size_t n = 1; n <= 70; ++n) {
        const auto count = static_cast<int>(n);
        const Floats x = awkward(random, n), g = awkward(random, n), w = randoms(random, n);
        const Floats clean = randoms(random, n, 2.0f);
        for (const Kernels* kernels : available_kernels()) {
            const Operations& ops = operations_of(kernels);
            Floats y(n), wanted(n);
            ops.decay(x.data(), w.data(), g.data(), 0.0f, count, y.data());
            for (size_t i = 0; i < n; ++i) wanted[i] = canonical(w[i] * softplus(x[i] + g[i]));
            check_same(ops.name, "decay", y, wanted);
            ops.decay(x.data(), w.data(), g.data(), -5.0f, count, y.data());
            for (size_t i = 0; i < n; ++i) wanted[i] = canonical(-5.0f * sigmoid(0.0f - w[i] * (x[i] + g[i])));
            check_same(ops.name, "bounded decay", y, wanted);
            ops.relu2(x.data(), count, y.data());
            for (size_t i = 0; i < n; ++i) wanted[i] = canonical(0.0f > x[i] ? 0.0f : x[i] * x[i]);
            check_same(ops.name, "relu2", y, wanted);
            ops.l2_norm(clean.data(), 1e-6f, count, y.data());
            const float r = 1.0f / std::sqrt(lane_dot(clean.data(), clean.data(), n) + 1e-6f);
            for (size_t i = 0; i < n; ++i) wanted[i] = clean[i] * r;
            check_same(ops.name, "l2_norm", y, wanted);
            for (const GateKind kind : kGates) {
                ops.gate(kind, x.data(), g.data(), false, count, y.data());
                for (size_t i = 0; i < n; ++i) wanted[i] = canonical(activated_twin(kind, g[i]) * x[i]);
                check_same(ops.name, "gate", y, wanted);
                ops.gate(kind, x.data(), g.data(), true, count, y.data());
                for (size_t i = 0; i < n; ++i) wanted[i] = canonical(activated_twin(kind, g[0]) * x[i]);
                check_same(ops.name, "gate of one", y, wanted);
            }
        }
    }
}

FREETOKEN_TEST(gated_norms_are_the_same_in_every_table) {
    Random random(32);
    for (size_t n = 1; n <= 70; ++n)
        for (const GateKind kind : kGates)
            for (const bool gate_first : {true, false}) {
                const Floats x = randoms(random, n), g = randoms(random, n, 4.0f), w = randoms(random, n);
                Floats first = x;
                for (size_t i = 0; gate_first && i < n; ++i) first[i] = activated_twin(kind, g[i]) * x[i];
                const float mean = lane_dot(first.data(), first.data(), n) / static_cast<float>(n);
                const float r = 1.0f / std::sqrt(mean + 1e-5f);
                Floats wanted(n);
                for (size_t i = 0; i < n; ++i) {
                    wanted[i] = first[i] * r * w[i];
                    if (!gate_first) wanted[i] = wanted[i] * activated_twin(kind, g[i]);
                }
                for (const Kernels* kernels : available_kernels()) {
                    Floats y(n), gate = g;
                    const Operations& ops = operations_of(kernels);
                    const auto count = static_cast<int>(n);
                    ops.gated_norm(kind, gate_first, x.data(), g.data(), w.data(), 1e-5f, count, y.data());
                    check_same(ops.name, "gated_norm", y, wanted);
                    ops.gated_norm(kind, gate_first, x.data(), gate.data(), w.data(), 1e-5f, count, gate.data());
                    check_same(ops.name, "gated_norm over its gate", gate, wanted);
                }
            }
}

FREETOKEN_TEST(convolutions_are_the_same_in_every_table) {
    Random random(33);
    for (const size_t channels : {1, 15, 16, 17, 50, 96})
        for (const size_t kernel : {2, 3, 4, 7})
            for (const GateKind kind : kGates) {
                constexpr size_t tokens = 6;
                const Floats x = awkward(random, tokens * channels), w = randoms(random, channels * kernel);
                const Floats bias = randoms(random, channels);
                const float* added = kind == GateKind::silu ? bias.data() : nullptr;
                Floats history = randoms(random, channels * (kernel - 1)), wanted;
                const Floats before = history;
                for (size_t t = 0; t < tokens; ++t) {
                    const Floats row = conv_twin(slice(x, t * channels, channels), w, added, kind, history);
                    wanted.insert(wanted.end(), row.begin(), row.end());
                }
                const Floats turned = in_blocks(w, channels), begin = in_blocks(before, channels);
                const Floats end = in_blocks(history, channels);
                for (const Kernels* kernels : available_kernels()) {
                    Floats rows = x, state = begin;  // in place
                    ConvRun run;
                    run.x = {rows.data(), channels};
                    run.y = {rows.data(), channels};
                    run.tokens = tokens;
                    run.channels = static_cast<int>(channels);
                    run.kernel = static_cast<int>(kernel);
                    run.w = turned.data();
                    run.bias = added;
                    run.activation = kind;
                    run.history = state.data();
                    operations_of(kernels).conv(run);
                    check_same(kernels->name, "conv", rows, wanted);
                    check_same(kernels->name, "conv history", state, end);
                }
            }
}

FREETOKEN_TEST(delta_rules_are_the_same_in_every_table_and_cut_of_columns) {
    Random random(34);
    for (const size_t k_dim : {1, 16, 20, 33})
        for (const size_t v_dim : {1, 16, 40, 128, 150, 200})
            for (const bool channelwise : {false, true}) {
                constexpr size_t tokens = 4;
                const size_t g_dim = channelwise ? k_dim : 1;
                const Floats q = randoms(random, tokens * k_dim), k = randoms(random, tokens * k_dim, 0.3f);
                const Floats b = randoms(random, tokens);
                Floats v = randoms(random, tokens * v_dim), g = randoms(random, tokens * g_dim);
                for (float& value : g) value = -std::fabs(value);
                if (v_dim > 100) v[v_dim + 3] = NAN;  // spoils its column alone
                Floats state = randoms(random, k_dim * v_dim), wanted;
                const Floats before = state;
                for (size_t t = 0; t < tokens; ++t) {
                    const Floats row =
                        delta_twin(slice(q, t * k_dim, k_dim), slice(k, t * k_dim, k_dim), slice(v, t * v_dim, v_dim),
                                   slice(g, t * g_dim, g_dim), b[t], 0.25f, state);
                    wanted.insert(wanted.end(), row.begin(), row.end());
                }
                for (const Kernels* kernels : available_kernels())
                    for (const size_t cut : {v_dim, size_t{16}, size_t{48}}) {
                        Floats o(tokens * v_dim), found = before;
                        for (size_t first = 0; first < v_dim; first += cut) {
                            DeltaRun run;
                            run.q = {q.data(), k_dim};
                            run.k = {k.data(), k_dim};
                            run.v = Rows{v.data(), v_dim}.from(first);
                            run.decay = {g.data(), g_dim};
                            run.beta = {b.data(), 1};
                            run.o = OutputRows{o.data(), v_dim}.from(first);
                            run.tokens = tokens;
                            run.k_dim = static_cast<int>(k_dim);
                            run.columns = static_cast<int>(std::min(cut, v_dim - first));
                            run.channelwise = channelwise;
                            run.scale = 0.25f;
                            run.state = found.data() + first;
                            run.state_stride = v_dim;
                            operations_of(kernels).delta_rule(run);
                        }
                        check_same(kernels->name, "delta_rule", o, wanted);
                        check_same(kernels->name, "delta_rule state", found, state);
                    }
            }
}

namespace {

// Some tokens of a state space, one of them with a value that is no number.
struct Space {
    static constexpr size_t tokens = 4;

    size_t heads, head_dim, groups, n;
    SsmShape shape;
    Floats a, d, bias, x, dt, b, c, state;

    Space(Random& random, bool by_channel, size_t of_heads, size_t of_dim, size_t of_groups, size_t of_state)
        : heads(of_heads), head_dim(of_dim), groups(of_groups), n(of_state) {
        shape.heads = static_cast<int>(heads);
        shape.head_dim = static_cast<int>(head_dim);
        shape.groups = static_cast<int>(groups);
        shape.state_dim = static_cast<int>(n);
        shape.by_channel = by_channel;
        shape.dt_min = by_channel ? 0.0f : 0.3f;
        shape.dt_max = by_channel ? 0.0f : 0.8f;
        a = randoms(random, by_channel ? heads * n : heads, by_channel ? 4.0f : 1.0f);
        for (float& value : a) value = -std::fabs(value);
        d = randoms(random, heads);
        bias = randoms(random, heads);
        x = randoms(random, tokens * inputs());
        dt = randoms(random, tokens * heads);
        b = randoms(random, tokens * groups * n);
        c = randoms(random, tokens * groups * n);
        x[inputs() + 1] = NAN;
        state = randoms(random, inputs() * n);
    }

    size_t inputs() const { return heads * head_dim; }

    // Outputs of all tokens; the state becomes that behind them.
    Floats run_twin() {
        Floats y;
        for (size_t t = 0; t < tokens; ++t)
            for (size_t h = 0; h < heads; ++h) {
                Floats own = slice(state, h * head_dim * n, head_dim * n);
                const size_t group = (t * groups + h / (heads / groups)) * n;
                const Floats row = ssm_twin(shape, a.data() + (shape.by_channel ? h * n : h), d[h], bias[h],
                                            slice(x, t * inputs() + h * head_dim, head_dim), dt[t * heads + h],
                                            b.data() + group, c.data() + group, own);
                y.insert(y.end(), row.begin(), row.end());
                std::copy(own.begin(), own.end(), at(state, h * head_dim * n));
            }
        return y;
    }

    SsmRun run(Floats& y, Floats& values) const {
        SsmRun run;
        run.x = {x.data(), inputs()};
        run.dt = {dt.data(), heads};
        run.b = {b.data(), groups * n};
        run.c = {c.data(), groups * n};
        run.y = {y.data(), inputs()};
        run.tokens = tokens;
        run.state = values.data();
        return run;
    }
};

}  // namespace

FREETOKEN_TEST(state_spaces_are_the_same_in_every_table_and_cut_of_rows) {
    Random random(35);
    for (const size_t head_dim : {1, 3, 20})
        for (const size_t n : {1, 16, 24, 128}) {
            Space space(random, false, head_dim == 1 ? 40 : 6, head_dim, 2, n);
            space.shape.a = space.a.data();
            space.shape.d = space.d.data();
            space.shape.dt_bias = space.bias.data();
            const Floats before = space.state, wanted = space.run_twin();
            for (const Kernels* kernels : available_kernels())
                for (const int rows : {space.shape.head_dim, 2}) {
                    Floats y(wanted.size()), found = before;
                    for (int first = 0; first < space.shape.head_dim; first += rows) {
                        SsmRun run = space.run(y, found);
                        run.heads = space.shape.heads - 2;
                        run.first = first;
                        run.rows = std::min(rows, space.shape.head_dim - first);
                        operations_of(kernels).ssm(space.shape, run);
                        run.head = space.shape.heads - 2;
                        run.heads = 2;
                        operations_of(kernels).ssm(space.shape, run);
                    }
                    check_same(kernels->name, "ssm", y, wanted);
                    check_same(kernels->name, "ssm state", found, space.state);
                }
        }
}

FREETOKEN_TEST(state_spaces_of_channels_are_the_same_in_every_table_and_cut_of_blocks) {
    Random random(36);
    for (const size_t channels : {1, 15, 16, 40, 64})
        for (const size_t n : {1, 7, 16, 24}) {
            Space space(random, true, channels, 1, 1, n);
            for (float& dt : space.dt)
                if (random.between(0, 7) == 0) dt = random.pick({-200.0f, 200.0f, 1e30f, INFINITY, NAN});
            if (channels > 20) {
                space.a[3] = float_of(kCanonicalNan);
                space.a[n * 2] = -0x1p-126f;
                space.state[n * 20] = INFINITY;
            }
            space.shape.d = space.d.data();
            space.shape.dt_bias = space.bias.data();
            const Floats before = in_blocks(space.state, channels), wanted = space.run_twin();
            const Floats rates = in_blocks(space.a, channels), after = in_blocks(space.state, channels);
            SsmShape shape = space.shape;
            shape.a = rates.data();
            for (const Kernels* kernels : available_kernels())
                for (const int cut : {shape.heads, 16, 32}) {
                    Floats y(wanted.size()), found = before;
                    SsmRun run = space.run(y, found);
                    for (; run.head < shape.heads; run.head += cut) {
                        run.heads = std::min(cut, shape.heads - run.head);
                        operations_of(kernels).ssm(shape, run);
                    }
                    check_same(kernels->name, "ssm of channels", y, wanted);
                    check_same(kernels->name, "ssm state of channels", found, after);
                }
        }
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    const freetoken::FloatMode mode;
    return freetoken::test::run_tests(argc, argv);
}
