// A few threads that live as long as the executor and do the phases of a job together. The caller of `run` is one.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "pool/tasks.h"

namespace freetoken {

// A sequence of phases. Whichever thread finishes the last task of one prepares the next by itself; nobody waits for a
// thread that has taken no task, so a core that another program holds slows a job down and does not stop it.
class Job {
public:
    virtual ~Job() = default;
    // Alone: prepares the next phase. A phase without tasks ends the job.
    virtual Phase next(int thread) = 0;
    // Some tasks of the phase; several threads at once.
    virtual void run(TaskRange tasks, int thread) = 0;
};

class Pool {
public:
    // One thread for each entry: the CPU it is pinned to, or -1. The first entry is the caller's, pinned during `run`.
    explicit Pool(std::vector<int> cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return static_cast<int>(cpus_.size()); }

    // Does all phases of a job, in the contract's floating-point mode. The first exception of any thread ends the job
    // after the phase and is thrown again here.
    void run(Job& job);

private:
    void serve(int thread) noexcept;
    void work(uint32_t phase, int thread) noexcept;
    void advance(int thread) noexcept;
    void keep_failure() noexcept;

    const std::vector<int> cpus_;
    std::mutex running_;
    Job* job_ = nullptr;
    Tasks tasks_;
    alignas(64) std::atomic<uint32_t> phase_{0};  // number of the phase under way; waited for
    std::atomic<uint32_t> end_{0};                // number of the phase that says the job is done
    std::atomic<bool> stopping_{false};
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::vector<std::thread> threads_;
};

}  // namespace freetoken
