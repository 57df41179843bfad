// The CPU's side of a device step: a thread that answers the mailbox, and another that watches it.
//
// A request is owned by whoever exchanges its word for 0, and answered by whoever owns it: the worker, or the watchdog
// when nobody has answered for longer than `patience`. The watchdog also takes a request away from a worker that is
// stuck in it; that worker's result is then nobody's, and no step begins before it is done with it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hybrid/cpu_share.h"
#include "hybrid/mailbox_view.h"

namespace freetoken {

struct WorkerCounters {
    int64_t requests = 0;  // that the worker answered
    int64_t empty = 0;     // of these, without a pair
    int64_t experts = 0;
    int64_t bytes = 0;        // of records read
    int64_t nanoseconds = 0;  // from seeing a request to its answer
};

class ExpertWorker {
public:
    using HostFunction = void (*)(void* argument);

    // `box` and `share` are of the same block of memory. The worker is asleep.
    ExpertWorker(const MailboxView& box, std::unique_ptr<CpuShare> share, std::chrono::nanoseconds patience);
    // Answers a request that is still there as failed, after the one that is being computed.
    ~ExpertWorker();
    ExpertWorker(const ExpertWorker&) = delete;
    ExpertWorker& operator=(const ExpertWorker&) = delete;

    // Begins a step: empties the mailbox and looks at it from now on. False, and nothing changed, if the worker is
    // still busy with an older step after `patience`.
    bool wake();
    // Ends a step: an idle worker takes no CPU until the next `wake`.
    void doze();

    // Why the step failed; empty if it did not. Until the next `wake`.
    std::string failure() const;

    // For devices that call functions instead of writing words: `host_function(argument(layer))` requests a layer and
    // returns when it is answered. Between wake and doze.
    static void host_function(void* argument) noexcept;
    void* argument(int layer) { return &calls_.at(static_cast<size_t>(layer)); }

    int layers() const { return share_->layers(); }
    int threads() const { return share_->threads(); }
    WorkerCounters counters() const;

private:
    enum class Mode : uint32_t { asleep, awake, stopping };

    struct Call {
        ExpertWorker* worker;
        uint32_t request;
    };

    void set_mode(Mode mode);
    void serve() noexcept;
    void poll() noexcept;
    void take() noexcept;
    void compute(uint32_t request) noexcept;
    void watch() noexcept;
    void give_up();
    void overdue(uint32_t request);
    void refuse(uint32_t request, const std::string& why);
    void lose(const std::string& why);
    void answer(uint32_t request) noexcept;
    void call(uint32_t request) noexcept;

    const MailboxView box_;
    const std::unique_ptr<CpuShare> share_;
    const std::chrono::nanoseconds patience_;
    std::vector<Call> calls_;

    std::atomic<Mode> mode_{Mode::asleep};
    std::atomic<bool> busy_{false};         // the worker may own a request
    std::atomic<uint32_t> running_{0};      // the request that it computes and will answer
    std::atomic<uint32_t> progress_{0};     // changes with every request taken and every one done with
    std::atomic<int> callers_{0};           // threads in `call`
    mutable std::mutex mutex_;              // guards what follows, and changes of the mode
    std::condition_variable mode_changed_;  // for the watchdog
    std::string failure_;
    WorkerCounters counters_;

    std::thread worker_;
    std::thread watchdog_;
};

}  // namespace freetoken
