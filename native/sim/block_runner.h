// Runs blocks of one launch after the other on one thread of the emulator.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/block.h"
#include "sim/registry.h"
#include "sim/shared_memory.h"

namespace freetoken::sim {

// A generator of random words (splitmix64).
struct Random {
    uint64_t state = 0;
    uint64_t operator()() {
        uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
};

struct Launch {
    const KernelEntry* kernel;
    Index grid;
    unsigned threads;       // of a block
    unsigned shared_bytes;  // dynamic
    const uint64_t* slots;
    uint64_t seed;
};

// The threads of one block: fibers (fibers.cpp) or threads of the system (system_threads.cpp).
class BlockThreads;

// What the emulated thread that runs at present belongs to.
struct Local {
    BlockThreads* threads = nullptr;  // none in a flat kernel
    SharedMemory* memory = nullptr;
    Counters* counters = nullptr;
    const Launch* launch = nullptr;
};
FREETOKEN_SIM_LOCAL Local local;

class BlockRunner {
public:
    BlockRunner();
    ~BlockRunner();
    // Runs one block; `random` chooses its orders. Adds to `counters`. Throws KernelError.
    void run(const Launch& launch, Index block, uint64_t random, Counters& counters);

private:
    SharedMemory memory_;
    std::unique_ptr<BlockThreads> threads_;
};

}  // namespace freetoken::sim
