#include "hybrid/expert_worker.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <sstream>
#include <utility>

#include "pool/relax.h"

namespace freetoken {
namespace {

using Time = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Layers follow each other within a fraction of a millisecond, so the worker looks hard at first; then it leaves its
// core to whoever wants it, and in long pauses, such as the attention of a long prompt, it sleeps between looks.
constexpr microseconds kSpin{100};
constexpr microseconds kYield{1000};
constexpr microseconds kNap{50};
constexpr int kPausesBetweenLooks = 32;  // at the clock

// How often the watchdog looks: an eighth of its patience late at most, but when a step is lost it hurries it along.
constexpr milliseconds kLongestLook{100};
constexpr milliseconds kHurry{1};

// In place of the request that the worker computes and the watchdog has answered.
constexpr uint32_t kAbandoned = std::numeric_limits<uint32_t>::max();

std::string not_computed(uint32_t request, const std::string& why) {
    return "The CPU did not compute the experts of MoE layer " + std::to_string(request - 1) + ": " + why + ".";
}

std::string in_seconds(std::chrono::nanoseconds time) {
    std::ostringstream text;
    text << std::chrono::duration<double>(time).count() << " s";
    return text.str();
}

}  // namespace

ExpertWorker::ExpertWorker(const MailboxView& box, std::unique_ptr<CpuShare> share, std::chrono::nanoseconds patience)
    : box_(box), share_(std::move(share)), patience_(patience) {
    for (int layer = 0; layer < share_->layers(); ++layer) calls_.push_back({this, static_cast<uint32_t>(layer) + 1});
    worker_ = std::thread([this] { serve(); });
    watchdog_ = std::thread([this] { watch(); });
}

ExpertWorker::~ExpertWorker() {
    set_mode(Mode::stopping);
    worker_.join();
    watchdog_.join();
    do {
        const uint32_t request = box_.request().exchange(0, std::memory_order_acquire);
        if (request != 0) refuse(request, "the worker was ended");
        std::this_thread::yield();
    } while (callers_.load(std::memory_order_acquire) > 0);
}

void ExpertWorker::set_mode(Mode mode) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        mode_.store(mode, std::memory_order_seq_cst);
    }
    mode_.notify_all();
    mode_changed_.notify_all();
}

bool ExpertWorker::wake() {
    for (const Time::time_point start = Time::now(); busy_.load(std::memory_order_acquire);) {
        const Time::duration waited = Time::now() - start;
        if (waited > patience_) return false;
        if (waited > kYield)
            std::this_thread::sleep_for(kHurry);
        else
            std::this_thread::yield();
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_.clear();
    }
    for (const MailboxView::Word word : {box_.request(), box_.done(), box_.failed()})
        word.store(0, std::memory_order_release);
    set_mode(Mode::awake);
    return true;
}

void ExpertWorker::doze() {
    set_mode(Mode::asleep);
}

std::string ExpertWorker::failure() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
}

WorkerCounters ExpertWorker::counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counters_;
}

// --- the worker

void ExpertWorker::serve() noexcept {
    while (true) {
        mode_.wait(Mode::asleep, std::memory_order_acquire);
        if (mode_.load(std::memory_order_acquire) == Mode::stopping) return;
        poll();
    }
}

// Answers requests until nobody has asked for anything for as long as the worker is awake.
void ExpertWorker::poll() noexcept {
    Time::time_point idle_since = Time::now();
    while (mode_.load(std::memory_order_acquire) == Mode::awake) {
        for (int i = 0; i < kPausesBetweenLooks; ++i) {
            if (box_.request().load(std::memory_order_relaxed) != 0) {
                take();
                idle_since = Time::now();
            }
            relax();
        }
        const Time::duration idle = Time::now() - idle_since;
        if (idle > kYield)
            std::this_thread::sleep_for(kNap);
        else if (idle > kSpin)
            std::this_thread::yield();
    }
}

// The request may be gone by now, if the watchdog has answered it.
void ExpertWorker::take() noexcept {
    busy_.store(true, std::memory_order_seq_cst);
    if (const uint32_t request = box_.request().exchange(0, std::memory_order_acquire); request != 0) {
        running_.store(request, std::memory_order_release);
        progress_.fetch_add(1, std::memory_order_release);
        // The rest of a lost step is worth nothing.
        if (box_.failed().load(std::memory_order_acquire) == 0) compute(request);
        if (running_.exchange(0, std::memory_order_acq_rel) == request) answer(request);
        progress_.fetch_add(1, std::memory_order_release);
    }
    busy_.store(false, std::memory_order_release);
}

void ExpertWorker::compute(uint32_t request) noexcept {
    const Time::time_point start = Time::now();
    std::string wrong;
    bool empty = false;
    try {
        empty = !share_->run(request - 1);
    } catch (const std::exception& error) {
        wrong = not_computed(request, error.what());
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!wrong.empty()) lose(wrong);
    ++counters_.requests;
    counters_.empty += empty ? 1 : 0;
    counters_.experts = share_->counters().experts;
    counters_.bytes = share_->counters().bytes;
    counters_.nanoseconds += std::chrono::nanoseconds(Time::now() - start).count();
}

// Only by whoever owns the request.
void ExpertWorker::answer(uint32_t request) noexcept {
    box_.done().store(request, std::memory_order_release);
    box_.done().notify_all();
}

// Before the answer, so that whoever sees that one sees this. The lock is held.
void ExpertWorker::lose(const std::string& why) {
    if (failure_.empty()) failure_ = why;
    box_.failed().store(1, std::memory_order_release);
}

// --- the watchdog

void ExpertWorker::watch() noexcept {
    const auto look = std::clamp<std::chrono::nanoseconds>(patience_ / 8, kHurry, kLongestLook);
    std::unique_lock<std::mutex> lock(mutex_);
    Time::time_point since = Time::now();
    uint32_t seen = progress_.load(std::memory_order_acquire);
    while (mode_.load(std::memory_order_relaxed) != Mode::stopping) {
        if (mode_.load(std::memory_order_relaxed) == Mode::asleep) {
            mode_changed_.wait(lock);
            since = Time::now();  // nothing waits for longer than the step lasts
            continue;
        }
        mode_changed_.wait_for(lock, failure_.empty() ? look : kHurry);
        const bool lost = !failure_.empty();
        const bool waiting =
            mode_.load(std::memory_order_relaxed) == Mode::awake &&
            (running_.load(std::memory_order_acquire) != 0 || box_.request().load(std::memory_order_acquire) != 0);
        const Time::time_point now = Time::now();
        if (const uint32_t progress = progress_.load(std::memory_order_acquire); !waiting || progress != seen) {
            seen = progress;
            since = now;
        }
        if (waiting && (lost || now - since >= patience_)) give_up();
    }
}

// Answers what nobody else has answered, computed or not. The lock is held.
void ExpertWorker::give_up() {
    uint32_t running = running_.load(std::memory_order_acquire);
    if (running != 0 && running != kAbandoned &&
        running_.compare_exchange_strong(running, kAbandoned, std::memory_order_acq_rel))
        overdue(running);
    if (const uint32_t request = box_.request().exchange(0, std::memory_order_acquire); request != 0) overdue(request);
}

void ExpertWorker::overdue(uint32_t request) {
    lose(not_computed(request, "it took longer than " + in_seconds(patience_)));
    answer(request);
}

// --- functions for devices that call them

void ExpertWorker::host_function(void* argument) noexcept {
    const Call& call = *static_cast<const Call*>(argument);
    call.worker->call(call.request);
}

// The worker computes here too, so that one watchdog serves both ways.
void ExpertWorker::call(uint32_t request) noexcept {
    callers_.fetch_add(1, std::memory_order_acq_rel);
    if (mode_.load(std::memory_order_acquire) == Mode::asleep) {
        refuse(request, "the worker was asleep");
    } else {
        box_.done().store(0, std::memory_order_relaxed);
        box_.request().store(request, std::memory_order_release);
        while (box_.done().load(std::memory_order_acquire) != request) box_.done().wait(0, std::memory_order_acquire);
    }
    callers_.fetch_sub(1, std::memory_order_release);
}

void ExpertWorker::refuse(uint32_t request, const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lose(not_computed(request, why));
    answer(request);
}

}  // namespace freetoken
