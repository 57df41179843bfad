// A barrier for a few pinned threads: it spins briefly, then sleeps, so it also ends when other programs hold the
// cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace freetoken {

// Waits until `word` no longer holds `old`.
void wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old) noexcept;

// Thrown out of a barrier when another thread of the job has failed and will never arrive.
struct BrokenBarrier : std::exception {
    const char* what() const noexcept override { return "another thread of the job has failed"; }
};

class Barrier {
public:
    explicit Barrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}

    // Returns when all threads have called it. The last to arrive runs `serial` alone before it releases the others;
    // everything written before the barrier is visible in `serial`, and all of that after it.
    template <class Serial>
    void arrive_and_wait(Serial&& serial) {
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (broken_.load(std::memory_order_acquire)) throw BrokenBarrier();
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            serial();
            release();
        } else {
            wait_while_equal(phase_, phase);
        }
        if (broken_.load(std::memory_order_acquire)) throw BrokenBarrier();
    }

    // Lets every waiting thread go with BrokenBarrier.
    void break_up() noexcept {
        broken_.store(true, std::memory_order_release);
        release();
    }

    // Makes it whole again. Only while no thread is near it.
    void repair() noexcept {
        arrived_.store(0, std::memory_order_relaxed);
        broken_.store(false, std::memory_order_relaxed);
    }

private:
    void release() noexcept {
        // Sequentially consistent: notify_all must see every sleeper that has not seen this value.
        phase_.fetch_add(1, std::memory_order_seq_cst);
        phase_.notify_all();
    }

    const uint32_t threads_;
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    std::atomic<bool> broken_{false};
};

}  // namespace freetoken
