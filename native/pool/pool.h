// A few threads that live as long as the executor. The caller of `run` is one of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "pool/barrier.h"

namespace freetoken {

class Pool {
public:
    // One thread for each entry: the CPU it is pinned to, or -1. The first entry is the caller's, pinned during `run`
    // only.
    explicit Pool(std::vector<int> cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return static_cast<int>(cpus_.size()); }

    // Runs job(thread) on every thread with the contract's floating point mode and returns when all are done. The first
    // exception that a thread lets out is thrown again here; the others leave their barriers with BrokenBarrier.
    void run(const std::function<void(int)>& job);

    // For all threads of a job: see Barrier.
    template <class Serial>
    void barrier(Serial&& serial) {
        barrier_.arrive_and_wait(serial);
    }

private:
    void serve(int thread) noexcept;
    void run_one(int thread) noexcept;

    const std::vector<int> cpus_;
    Barrier barrier_;
    std::mutex running_;
    const std::function<void(int)>* job_ = nullptr;
    std::exception_ptr failure_;
    std::mutex failure_mutex_;
    alignas(64) std::atomic<uint32_t> started_{0};
    alignas(64) std::atomic<uint32_t> unfinished_{0};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_;
};

}  // namespace freetoken
