// The tasks of one phase, shared out to threads. Every thread walks its own contiguous share, so that memory is read as
// one stream, and helps the others from the far end of theirs when it is done.
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

// Tasks 0 .. count - 1. A thread takes a quarter of what is left of a share, at least `grain`: much while there is
// much, so that it reads long runs, and little in the end, so that all finish together. `in_order`: all threads take
// from the front of one list, `grain` at a time.
struct Phase {
    uint32_t count = 0;
    uint32_t grain = 1;
    bool in_order = false;
};

// A thread may look at any time, even one that slept through several phases: every share carries the number of its
// phase, and what is taken with the number of an old phase is nothing. Numbers repeat after 2^32 phases; a thread would
// have to sleep between two instructions for exactly that long to be misled.
class Tasks {
public:
    explicit Tasks(int threads) : threads_(threads), shares_(std::make_unique<Share[]>(static_cast<size_t>(threads))) {}

    // Starts phase `number`. Only when all tasks of the last one are done.
    void start(uint32_t number, const Phase& phase) {
        count_ = phase.count;
        grain_ = std::max({phase.grain, 1u, (phase.count + kMostUnits - 1) / kMostUnits});
        const uint32_t units = (count_ + grain_ - 1) / grain_;
        unfinished_.store(units, std::memory_order_relaxed);
        const auto threads = static_cast<uint32_t>(threads_);
        for (uint32_t thread = 0; thread < threads; ++thread) {
            const Span whole = {0, thread == 0 ? units : 0, true};
            const Span share = {units * thread / threads, units * (thread + 1) / threads, false};
            shares_[thread].word.store(pack(number, phase.in_order ? whole : share), std::memory_order_release);
        }
    }

    // Gives `thread` its next tasks of phase `number`; false when there are none left to take.
    bool take(uint32_t number, int thread, TaskRange& range) noexcept {
        Span taken{};
        bool found = take_from(shares_[thread].word, number, true, taken);
        for (int step = 1; !found && step < threads_; ++step)
            found = take_from(shares_[(thread + step) % threads_].word, number, false, taken);
        if (!found) return false;
        range = {taken.begin * grain_, std::min(count_, taken.end * grain_)};
        return true;
    }

    // Says that a taken range is done; true for the last of its phase.
    bool finish(const TaskRange& range) noexcept {
        const uint32_t units = (range.end - range.begin + grain_ - 1) / grain_;
        return unfinished_.fetch_sub(units, std::memory_order_acq_rel) == units;
    }

private:
    static constexpr uint32_t kMostUnits = 0x7FFF;

    // What is left of a share, in units of `grain` tasks.
    struct Span {
        uint32_t begin;
        uint32_t end;
        bool in_order;
    };

    struct alignas(64) Share {
        std::atomic<uint64_t> word{0};  // from the top: number 32, in_order 1, end 16, begin 15 bits
    };

    static uint64_t pack(uint32_t number, const Span& span) {
        return uint64_t{number} << 32 | uint64_t{span.in_order} << 31 | uint64_t{span.end} << 15 | span.begin;
    }

    static Span unpack(uint64_t word) {
        const auto low = static_cast<uint32_t>(word);
        return {low & kMostUnits, low >> 15 & 0xFFFFu, (low >> 31) != 0};
    }

    // Takes from the front of an own share or an ordered list, from the back of another thread's share.
    static bool take_from(std::atomic<uint64_t>& word, uint32_t number, bool own, Span& taken) noexcept {
        uint64_t seen = word.load(std::memory_order_relaxed);
        while (static_cast<uint32_t>(seen >> 32) == number) {
            Span left = unpack(seen);
            if (left.begin >= left.end) return false;
            const uint32_t units = left.in_order ? 1 : (left.end - left.begin + 3) / 4;
            if (own || left.in_order) {
                taken = {left.begin, left.begin + units, left.in_order};
                left.begin = taken.end;
            } else {
                taken = {left.end - units, left.end, left.in_order};
                left.end = taken.begin;
            }
            // Acquire: what was written before the phase started is read after this.
            if (word.compare_exchange_weak(seen, pack(number, left), std::memory_order_acquire,
                                           std::memory_order_relaxed))
                return true;
        }
        return false;
    }

    const int threads_;
    uint32_t count_ = 0;
    uint32_t grain_ = 1;
    std::atomic<uint32_t> unfinished_{0};
    std::unique_ptr<Share[]> shares_;
};

}  // namespace freetoken
