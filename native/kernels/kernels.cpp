#include "kernels/kernels.h"

#include <array>
#include <utility>

#include "kernels/tables.h"

namespace freetoken {
namespace {

struct Available {
    std::array<const Kernels*, 3> tables{};
    size_t count = 0;

    void add(const Kernels& kernels) { tables[count++] = &kernels; }
};

Available detect() {
    Available found;
    found.add(kScalarKernels);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))  // whoever has AVX2 has F16C
        found.add(kAvx2Kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vnni"))
        found.add(kAvx512Kernels);
#endif
    return found;
}

const Available& available() {
    static const Available found = detect();
    return found;
}

constexpr std::pair<std::string_view, GluKind> kGluNames[] = {
    {"silu", GluKind::silu},           {"clamped_silu", GluKind::clamped_silu}, {"relu2", GluKind::relu2},
    {"limited_silu", GluKind::limited_silu}, {"capped_silu", GluKind::capped_silu},
    {"gelu_tanh", GluKind::gelu_tanh}, {"gelu", GluKind::gelu},
};

}  // namespace

std::optional<Glu> glu_named(std::string_view name, float alpha, float limit) {
    for (const auto& [known, kind] : kGluNames) {
        if (name != known) continue;
        const bool bounded = kind == GluKind::clamped_silu || kind == GluKind::limited_silu || kind == GluKind::capped_silu;
        return bounded ? Glu{kind, alpha, limit} : Glu{kind};
    }
    return {};
}

std::span<const Kernels* const> available_kernels() {
    return {available().tables.data(), available().count};
}

const Kernels& best_kernels() {
    return *available_kernels().back();
}

const Kernels* kernels_for(std::string_view name) {
    for (const Kernels* kernels : available_kernels())
        if (kernels->name == name) return kernels;
    return nullptr;
}

}  // namespace freetoken
