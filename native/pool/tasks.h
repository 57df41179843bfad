// Work shared out to threads: every thread walks its own contiguous share, so that memory is read as one stream, and
// helps the others from the far end of theirs when it is done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace freetoken {

struct TaskRange {
    uint32_t begin = 0;
    uint32_t end = 0;
};

class Tasks {
public:
    explicit Tasks(int threads) : threads_(threads), shares_(std::make_unique<Share[]>(static_cast<size_t>(threads))) {}

    // Shares out tasks 0 .. count - 1, to be taken `grain` at a time. `in_order`: all threads take from the front.
    // Only while no thread takes.
    void reset(uint32_t count, uint32_t grain, bool in_order) {
        grain_ = std::max(grain, 1u);
        in_order_ = in_order;
        if (in_order) {
            shares_[0].bounds.store(pack(0, count), std::memory_order_relaxed);
            return;
        }
        const uint64_t units = (static_cast<uint64_t>(count) + grain_ - 1) / grain_;
        const auto bound = [&](int thread) {
            return std::min<uint64_t>(count,
                                      units * static_cast<uint64_t>(thread) / static_cast<uint64_t>(threads_) * grain_);
        };
        for (int thread = 0; thread < threads_; ++thread) {
            shares_[thread].bounds.store(pack(bound(thread), bound(thread + 1)), std::memory_order_relaxed);
        }
    }

    // Gives `thread` its next run of tasks; false when nothing is left anywhere.
    bool take(int thread, TaskRange& range) noexcept {
        if (in_order_) return take_front(shares_[0].bounds, range);
        if (take_front(shares_[thread].bounds, range)) return true;
        for (int step = 1; step < threads_; ++step) {
            const int victim = (thread + step) % threads_;
            if (take_back(shares_[victim].bounds, range)) return true;
        }
        return false;
    }

private:
    struct alignas(64) Share {
        std::atomic<uint64_t> bounds{0};  // begin in the low half, end in the high half
    };

    static uint64_t pack(uint64_t begin, uint64_t end) { return begin | end << 32; }

    bool take_front(std::atomic<uint64_t>& bounds, TaskRange& range) noexcept {
        uint64_t seen = bounds.load(std::memory_order_relaxed);
        while (true) {
            const auto begin = static_cast<uint32_t>(seen);
            const auto end = static_cast<uint32_t>(seen >> 32);
            if (begin >= end) return false;
            const uint32_t middle = begin + std::min(grain_, end - begin);
            if (bounds.compare_exchange_weak(seen, pack(middle, end), std::memory_order_relaxed)) {
                range = {begin, middle};
                return true;
            }
        }
    }

    bool take_back(std::atomic<uint64_t>& bounds, TaskRange& range) noexcept {
        uint64_t seen = bounds.load(std::memory_order_relaxed);
        while (true) {
            const auto begin = static_cast<uint32_t>(seen);
            const auto end = static_cast<uint32_t>(seen >> 32);
            if (begin >= end) return false;
            const uint32_t middle = end - std::min(grain_, end - begin);
            if (bounds.compare_exchange_weak(seen, pack(begin, middle), std::memory_order_relaxed)) {
                range = {middle, end};
                return true;
            }
        }
    }

    const int threads_;
    uint32_t grain_ = 1;
    bool in_order_ = false;
    std::unique_ptr<Share[]> shares_;
};

}  // namespace freetoken
