#include "sim/block.h"

#include <string>
#include <utility>

#include "sim/block_runner.h"
#include "sim/block_threads.h"

namespace freetoken::sim {

constinit thread_local Index threadIdx;
constinit thread_local Index blockIdx;
constinit thread_local Index blockDim;
constinit thread_local Index gridDim;
constinit thread_local Local local;

namespace {

[[noreturn]] void fail(std::string what) {
    what.insert(0, "kernel " + local.launch->kernel->name + " ");
    if (local.threads != nullptr) local.threads->fail(std::move(what));
    throw KernelError(what);
}

BlockThreads& threads_for(const char* what) {
    if (local.threads == nullptr) fail(std::string("is registered as flat and has ") + what);
    return *local.threads;
}

}  // namespace

int barrier_count(bool predicate) {
    return threads_for("a barrier").barrier(predicate);
}

void barrier() {
    barrier_count(false);
}

const Words* exchange(Stop kind, unsigned mask, const uint32_t* words, int count) {
    if (mask != 0xFFFFFFFFu) fail("has a warp collective of some lanes only");
    return threads_for("a warp collective").exchange(kind, words, count);
}

void* shared_memory(const void* key, size_t bytes) {
    threads_for("shared memory");
    void* found = local.memory->find(key, bytes);
    if (found == nullptr) fail("declares more shared memory than there is");
    return found;
}

void* dynamic_shared_memory() {
    threads_for("shared memory");
    return local.memory->dynamic();
}

void count_atomic(const void* address) {
    uint64_t& count = local.memory->holds(address) ? local.counters->shared_atomics : local.counters->global_atomics;
    __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}

BlockRunner::BlockRunner() : threads_(make_block_threads()) {}
BlockRunner::~BlockRunner() = default;

void BlockRunner::run(const Launch& launch, Index block, uint64_t random, Counters& counters) {
    blockDim = {launch.threads, 1, 1};
    gridDim = launch.grid;
    blockIdx = block;
    threadIdx = {};
    local = {nullptr, &memory_, &counters, &launch};
    if (launch.kernel->flat) {
        launch.kernel->loop(launch.slots, Shuffle(launch.threads, random), launch.threads);
    } else {
        Local owner = local;
        owner.threads = threads_.get();
        threads_->run(owner, block, random);
        const std::string wrong = memory_.finish(launch.shared_bytes);
        if (!wrong.empty()) fail(wrong);
    }
}

}  // namespace freetoken::sim
