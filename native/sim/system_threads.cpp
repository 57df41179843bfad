// A thread of a block as a thread of the system: slow, and what ThreadSanitizer can look at. What the emulation does
// itself gives the threads no order beyond what barriers and collectives give them.
#ifdef FREETOKEN_SIM_THREADS

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/float_mode.h"
#include "sim/block_threads.h"
#include "sim/matrix.h"

namespace freetoken::sim {
namespace {

struct Warp {
    std::barrier<> meeting{kWarpLanes};
    Words words[2][kWarpLanes];
};

// What a thread of the block knows of itself.
thread_local unsigned barriers_passed = 0;
thread_local unsigned collectives_passed = 0;
thread_local Words products[kWarpLanes];  // of the last matrices

class Team final : public BlockThreads {
public:
    ~Team() override {
        start(0);
        for (std::thread& thread : threads_) thread.join();
    }

    void run(const Local& owner, Index block, uint64_t) override {
        owner_ = owner;
        owner_.threads = this;
        block_ = block;
        const unsigned threads = owner.launch->threads;
        meeting_.emplace(threads);
        running_ = threads;
        for (auto& voices : voices_) voices = 0;
        while (warps_.size() < threads / kWarpLanes) warps_.push_back(std::make_unique<Warp>());
        while (threads_.size() < threads) {
            const auto number = static_cast<unsigned>(threads_.size());
            threads_.emplace_back([this, number, seen = word_.load()] { serve(number, seen); });
        }
        start(threads);
        for (unsigned left = running_; left != 0; left = running_) running_.wait(left);
        owner.counters->barriers = std::max(owner.counters->barriers, barriers_);
    }

    int barrier(bool predicate) override {
        // Three counts in turn: what is cleared here was read before this barrier and is not written before the next.
        const unsigned turn = barriers_passed++;
        if (predicate) voices_[turn % 3].fetch_add(1, std::memory_order_relaxed);
        meeting_->arrive_and_wait();
        if (threadIdx.x == 0) voices_[(turn + 2) % 3].store(0, std::memory_order_relaxed);
        return voices_[turn % 3].load(std::memory_order_relaxed);
    }

    const Words* exchange(Stop kind, const uint32_t* words, int count) override {
        Warp& warp = *warps_[threadIdx.x / kWarpLanes];
        Words* lanes = warp.words[collectives_passed++ % 2];
        if (count > 0) std::memcpy(lanes[threadIdx.x % kWarpLanes], words, static_cast<size_t>(count) * 4);
        warp.meeting.arrive_and_wait();
        if (threadIdx.x % kWarpLanes == 0) __atomic_fetch_add(&local.counters->collectives, 1, __ATOMIC_RELAXED);
        if (kind != Stop::matrix) return lanes;
        std::memcpy(products, lanes, sizeof products);
        multiply_matrices(products);
        return products;
    }

    [[noreturn]] void fail(std::string&& what) override {
        std::fprintf(stderr, "%s\n", what.c_str());
        std::abort();
    }

private:
    // Wakes everybody; the first `threads` have a block to run, and none means the end.
    void start(unsigned threads) {
        word_ = (word_ / kWordThreads + 1) * kWordThreads + threads;
        word_.notify_all();
    }

    void serve(unsigned number, uint32_t seen) {
        const FloatMode mode;
        for (;;) {
            word_.wait(seen);
            seen = word_;
            if (seen % kWordThreads == 0) return;
            if (number >= seen % kWordThreads) continue;
            local = owner_;
            blockDim = {local.launch->threads, 1, 1};
            gridDim = local.launch->grid;
            blockIdx = block_;
            threadIdx = {number, 0, 0};
            barriers_passed = collectives_passed = 0;
            local.launch->kernel->call(local.launch->slots);
            if (number == 0) barriers_ = barriers_passed;
            if (--running_ == 0) running_.notify_one();
        }
    }

    Local owner_;
    Index block_;
    std::optional<std::barrier<>> meeting_;
    std::atomic<unsigned> running_{0};
    std::atomic<int> voices_[3];
    uint64_t barriers_ = 0;
    std::vector<std::unique_ptr<Warp>> warps_;
    static constexpr uint32_t kWordThreads = 2048;
    std::atomic<uint32_t> word_{0};  // number of the start, times kWordThreads, plus the threads that it is for
    std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockThreads> make_block_threads() {
    return std::make_unique<Team>();
}

}  // namespace freetoken::sim

#endif
