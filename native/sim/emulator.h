// Launching emulated kernels: blocks in shuffled order, spread over threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pool/pool.h"
#include "sim/block.h"
#include "sim/registry.h"

namespace freetoken::sim {

class BlockRunner;

struct Grid {
    unsigned x = 1, y = 1, z = 1;
};

struct Shape {
    Grid grid;
    unsigned block = 32;  // threads
    unsigned shared = 0;  // bytes of dynamic shared memory
};

template <class T>
uint64_t slot_of(T value) {
    static_assert(sizeof value <= sizeof(uint64_t));
    uint64_t slot = 0;
    std::memcpy(&slot, &value, sizeof value);
    return slot;
}

class Emulator {
public:
    // `seed` decides every order there is; the same seed and the same launches give the same orders.
    explicit Emulator(int threads = 1, uint64_t seed = 0);
    ~Emulator();

    // Runs a kernel to its end. `slots` has a word for each parameter, its value in the low bytes. Throws KernelError
    // where the kernel or the shape breaks a rule.
    Counters launch(const KernelEntry& kernel, const Shape& shape, const uint64_t* slots);

    // The same with values, whose types must be those of the kernel's parameters (any pointer will do).
    template <class... A>
    Counters launch(const std::string& name, const Shape& shape, A... arguments) {
        const KernelEntry* kernel = find_kernel(name);
        if (kernel == nullptr) throw KernelError("there is no kernel " + name);
        const std::string given = {parameter_letter<A>()...};
        if (given != kernel->parameters)
            throw KernelError(name + " takes the parameters " + kernel->parameters + ", not " + given);
        const uint64_t slots[sizeof...(A) + 1] = {slot_of(arguments)...};
        return launch(*kernel, shape, slots);
    }

private:
    uint64_t random();

    Pool pool_;
    std::vector<std::unique_ptr<BlockRunner>> runners_;  // one a thread
    uint64_t state_;
};

}  // namespace freetoken::sim
