#include "sim/registry.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace freetoken::sim {
namespace {

std::vector<KernelEntry>& mutable_kernels() {
    static std::vector<KernelEntry> all;
    return all;
}

}  // namespace

Shuffle::Shuffle(uint32_t count, uint64_t random) : count_(count), offset_(0), step_(1) {
    if (count < 2) return;
    offset_ = static_cast<uint32_t>((random >> 32) % count);
    step_ = static_cast<uint32_t>((random & 0xFFFFFFFFu) % (count - 1)) + 1;
    while (std::gcd(step_, count) != 1) step_ = step_ % (count - 1) + 1;
}

const std::vector<KernelEntry>& kernels() {
    return mutable_kernels();
}

const KernelEntry* find_kernel(const std::string& name) {
    const auto& all = kernels();
    const auto found = std::find_if(all.begin(), all.end(), [&](const KernelEntry& k) { return k.name == name; });
    return found == all.end() ? nullptr : &*found;
}

RegisterKernel::RegisterKernel(KernelEntry entry) {
    mutable_kernels().push_back(std::move(entry));
}

}  // namespace freetoken::sim
