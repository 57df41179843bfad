#include "kernels/kernels.h"

#include <array>

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
    return found;
}

const Available& available() {
    static const Available found = detect();
    return found;
}

}  // namespace

std::span<const Kernels* const> available_kernels() { return {available().tables.data(), available().count}; }

const Kernels& best_kernels() { return *available_kernels().back(); }

const Kernels* kernels_for(std::string_view name) {
    for (const Kernels* kernels : available_kernels())
        if (kernels->name == name) return kernels;
    return nullptr;
}

}  // namespace freetoken
