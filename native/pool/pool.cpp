#include "pool/pool.h"

#include <utility>

#include "core/float_mode.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace freetoken {
namespace {

// About 30 us of spinning on current cores: longer than any wait between balanced threads, shorter than a time slice.
constexpr int kSpins = 1000;
constexpr int kYields = 16;

inline void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

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

}  // namespace

void wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old) noexcept {
    for (int i = 0; i < kSpins; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    for (int i = 0; i < kYields; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        std::this_thread::yield();
    }
    word.wait(old, std::memory_order_acquire);
}

Pool::Pool(std::vector<int> cpus) : cpus_(std::move(cpus)), barrier_(static_cast<int>(cpus_.size())) {
    threads_.reserve(cpus_.size());
    for (int thread = 1; thread < size(); ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
    stopping_.store(true, std::memory_order_release);
    started_.fetch_add(1, std::memory_order_seq_cst);
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Pool::run(const std::function<void(int)>& job) {
    const std::lock_guard<std::mutex> one_at_a_time(running_);
    const PinnedCaller pinned(cpus_[0]);
    job_ = &job;
    failure_ = nullptr;
    barrier_.repair();
    unfinished_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
    started_.fetch_add(1, std::memory_order_seq_cst);
    started_.notify_all();
    run_one(0);
    for (uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while_equal(unfinished_, left);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Pool::serve(int thread) noexcept {
    pin(cpus_[thread]);
    for (uint32_t seen = 0;; ++seen) {
        wait_while_equal(started_, seen);
        if (stopping_.load(std::memory_order_acquire)) return;
        run_one(thread);
        if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1) unfinished_.notify_all();
    }
}

void Pool::run_one(int thread) noexcept {
    const FloatMode mode;
    try {
        (*job_)(thread);
    } catch (const BrokenBarrier&) {
        // The thread that broke it carries the reason.
    } catch (...) {
        {
            const std::lock_guard<std::mutex> lock(failure_mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
        barrier_.break_up();
    }
}

}  // namespace freetoken
