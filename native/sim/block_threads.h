// The threads of one block and their stops. Implemented by fibers.cpp and, with FREETOKEN_SIM_THREADS, by
// system_threads.cpp.
#pragma once

#include <memory>
#include <string>

#include "sim/block_runner.h"

namespace freetoken::sim {

class BlockThreads {
public:
    virtual ~BlockThreads() = default;

    // Runs all threads of a block to their end. Throws KernelError.
    virtual void run(const Local& owner, Index block, uint64_t random) = 0;

    // By a thread of the block: waits for the others. `barrier`: how many came with `predicate`.
    virtual int barrier(bool predicate) = 0;
    virtual const Words* exchange(Stop kind, const uint32_t* words, int count) = 0;
    // Ends the launch. Nothing on the caller's stack is destroyed, so `what` is to be moved here.
    [[noreturn]] virtual void fail(std::string&& what) = 0;
};

std::unique_ptr<BlockThreads> make_block_threads();

}  // namespace freetoken::sim
