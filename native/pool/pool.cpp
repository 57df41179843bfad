#include "pool/pool.h"

#include <chrono>
#include <utility>

#include "core/float_mode.h"
#include "pool/relax.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace freetoken {
namespace {

using Time = std::chrono::steady_clock;

// A waiting thread spins for longer than an expert takes, so that threads which end a phase one after the other do not
// lose their cores; then it leaves its core to whoever wants it; then it sleeps.
constexpr std::chrono::microseconds kSpin{100};
constexpr std::chrono::microseconds kYield{1000};
constexpr int kPausesBetweenLooks = 32;  // at the clock

#ifdef __linux__
// CPU sets of any size: the fixed cpu_set_t ends at 1024.
class CpuSet {
public:
    explicit CpuSet(int capacity) : bytes_(CPU_ALLOC_SIZE(capacity)), set_(CPU_ALLOC(capacity)) {
        CPU_ZERO_S(bytes_, set_);
    }
    ~CpuSet() { CPU_FREE(set_); }
    CpuSet(const CpuSet&) = delete;
    CpuSet& operator=(const CpuSet&) = delete;

    void add(int cpu) { CPU_SET_S(cpu, bytes_, set_); }
    bool read() { return pthread_getaffinity_np(pthread_self(), bytes_, set_) == 0; }
    void apply() const { pthread_setaffinity_np(pthread_self(), bytes_, set_); }

private:
    size_t bytes_;
    cpu_set_t* set_;
};

constexpr int kMostCpus = 8192;

// A CPU taken away since the pool was made is no error: the thread then stays where the kernel puts it.
void pin(int cpu) {
    if (cpu < 0) return;
    CpuSet set(kMostCpus);
    set.add(cpu);
    set.apply();
}

// Pins the calling thread for one job and gives it back its old mask.
class PinnedCaller {
public:
    explicit PinnedCaller(int cpu) : before_(kMostCpus), pinned_(cpu >= 0 && before_.read()) {
        if (pinned_) pin(cpu);
    }
    ~PinnedCaller() {
        if (pinned_) before_.apply();
    }
    PinnedCaller(const PinnedCaller&) = delete;
    PinnedCaller& operator=(const PinnedCaller&) = delete;

private:
    CpuSet before_;
    bool pinned_;
};
#else
void pin(int) {}
struct PinnedCaller {
    explicit PinnedCaller(int) {}
};
#endif

// Spins briefly, then sleeps, until `word` no longer holds `old`.
void wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old) noexcept {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    const Time::time_point start = Time::now();
    for (Time::duration waited{}; waited < kYield; waited = Time::now() - start) {
        for (int i = 0; i < kPausesBetweenLooks; ++i) {
            if (word.load(std::memory_order_acquire) != old) return;
            relax();
        }
        if (waited > kSpin) std::this_thread::yield();
    }
    word.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(std::vector<int> cpus) : cpus_(std::move(cpus)), tasks_(static_cast<int>(cpus_.size())) {
    threads_.reserve(cpus_.size());
    for (int thread = 1; thread < size(); ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
    stopping_.store(true, std::memory_order_release);
    phase_.fetch_add(1, std::memory_order_seq_cst);
    phase_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Job& job) {
    const std::lock_guard<std::mutex> one_at_a_time(running_);
    const PinnedCaller pinned(cpus_[0]);
    const FloatMode mode;
    job_ = &job;
    failure_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    advance(0);
    while (true) {
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (phase == end_.load(std::memory_order_relaxed)) break;
        work(phase, 0);
        wait_while_equal(phase_, phase);
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Pool::serve(int thread) noexcept {
    pin(cpus_[thread]);
    const FloatMode mode;
    for (uint32_t phase = 0; !stopping_.load(std::memory_order_acquire);) {
        work(phase, thread);
        wait_while_equal(phase_, phase);
        phase = phase_.load(std::memory_order_acquire);
    }
}

void Pool::work(uint32_t phase, int thread) noexcept {
    TaskRange tasks;
    while (tasks_.take(phase, thread, tasks)) {
        try {
            job_->run(tasks, thread);
        } catch (...) {
            keep_failure();
        }
        if (tasks_.finish(tasks)) {
            advance(thread);
            return;
        }
    }
}

// Alone: all tasks of the last phase are done, and none of the next is there yet.
void Pool::advance(int thread) noexcept {
    Phase next;
    try {
        if (!failed_.load(std::memory_order_acquire)) next = job_->next(thread);
    } catch (...) {
        keep_failure();
        next = {};
    }
    const uint32_t number = phase_.load(std::memory_order_relaxed) + 1;
    // The end is a phase of its own, so that the caller cannot start another job before this thread has announced it.
    if (next.count == 0)
        end_.store(number, std::memory_order_relaxed);
    else
        tasks_.start(number, next);
    // Sequentially consistent: notify_all must see every sleeper that has not seen this value.
    phase_.fetch_add(1, std::memory_order_seq_cst);
    phase_.notify_all();
}

void Pool::keep_failure() noexcept {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
}

}  // namespace freetoken
