// A thread of a block as a fiber. The lanes of a warp run one after the other, in a new order each time, from stop to
// stop: that is a pass. Then a pass of another warp is chosen among those that may go on.
#ifndef FREETOKEN_SIM_THREADS

#include <cstring>
#include <utility>
#include <vector>

#include "exec/memory.h"
#include "sim/block_threads.h"
#include "sim/fiber.h"
#include "sim/matrix.h"

namespace freetoken::sim {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostWarps = kMostThreads / kWarpLanes;
constexpr size_t kStackBytes = 32 * 1024;
// Between stacks, so that the tops of all do not fall into the same few lines of the processor's caches.
constexpr size_t kStackStride = kStackBytes + 5 * 64;
constexpr uint64_t kCanary = 0x5AFE57AC5AFE57ACu;  // lies at the bottom of a stack

struct Warp {
    Words words[2][kWarpLanes];  // of two collectives, since a lane may reach the next while others still read
    int turn = 0;                // where the next collective writes
};

const char* name_of(Stop stop) {
    static constexpr const char* names[] = {"nothing",   "its end", "__syncthreads",   "__syncwarp",
                                            "a shuffle", "a vote",  "a matrix product"};
    return names[static_cast<int>(stop)];
}

class Fibers final : public BlockThreads {
public:
    void run(const Local& owner, Index, uint64_t random) override {
        launch_ = owner.launch;
        counters_ = owner.counters;
        random_.state = random;
        warp_count_ = launch_->threads / kWarpLanes;
        make_stacks();
        for (unsigned t = 0; t < launch_->threads; ++t) fibers_[t].prepare(stack(t), kStackBytes, &Fibers::start);
        finished_ = 0;
        barriers_ = 0;
        voices_ = 0;
        all_may_run();
        local.threads = this;
        begin_pass();
        fibers_[threadIdx.x].resume(main_);
        local.threads = nullptr;
        Fiber::abandon(stacks_.data(), stacks_.bytes());
        if (!failure_.empty()) throw KernelError(std::exchange(failure_, {}));  // leaves no buffer to the next
        for (unsigned t = 0; t < launch_->threads; ++t) {
            if (canary(t) != kCanary) throw KernelError("kernel " + launch_->kernel->name + " needs too much stack");
        }
        counters_->barriers = std::max(counters_->barriers, barriers_);
    }

    int barrier(bool predicate) override {
        voices_ += predicate ? 1 : 0;
        stop(Stop::barrier);
        return last_voices_;
    }

    const Words* exchange(Stop kind, const uint32_t* words, int count) override {
        Warp& warp = warps_[warp_];
        uint32_t* mine = warp.words[warp.turn][threadIdx.x % kWarpLanes];
        if (count > 2) {
            std::memcpy(mine, words, static_cast<size_t>(count) * 4);
        } else {  // a shuffle or a vote: not worth a call
            if (count > 0) mine[0] = words[0];
            if (count > 1) mine[1] = words[1];
        }
        stop(kind);
        return warp.words[warp.turn ^ 1];
    }

    [[noreturn]] void fail(std::string&& what) override {
        failure_ = std::move(what);
        leave();
    }

private:
    static void start() {
        auto* self = static_cast<Fibers*>(local.threads);
        self->launch_->kernel->call(self->launch_->slots);
        self->stop(Stop::done);
        __builtin_unreachable();
    }

    uint8_t* stack(unsigned thread) { return stacks_.data() + thread * kStackStride + 64; }
    uint64_t& canary(unsigned thread) { return *reinterpret_cast<uint64_t*>(stack(thread)); }

    void make_stacks() {
        const size_t had = fibers_.size();
        if (launch_->threads <= had) return;
        stacks_ = Mapping(launch_->threads * kStackStride + 128, true);
        fibers_.resize(launch_->threads);
        for (unsigned t = 0; t < launch_->threads; ++t) canary(t) = kCanary;
    }

    void all_may_run() {
        for (unsigned w = 0; w < warp_count_; ++w) runnable_[w] = static_cast<uint8_t>(w);
        runnable_count_ = warp_count_;
    }

    // Chooses a warp and an order of its lanes; threadIdx becomes the first of them.
    void begin_pass() {
        const uint64_t random = random_();
        place_ = static_cast<unsigned>((random >> 32) * runnable_count_ >> 32);
        warp_ = runnable_[place_];
        offset_ = static_cast<unsigned>(random) & 31u;
        step_ = static_cast<unsigned>(random >> 5) | 1u;
        flip_ = static_cast<unsigned>(random >> 10) & 31u;
        position_ = 0;
        take_lane();
    }
    void take_lane() { threadIdx.x = warp_ * kWarpLanes + (((offset_ + position_ * step_) & 31u) ^ flip_); }

    // The running thread has come to a stop; goes on with another, and returns when this one may go on.
    void stop(Stop kind) {
        const unsigned thread = threadIdx.x;
        if (position_ == 0) {
            pass_ = kind;
        } else if (kind != pass_) {
            fail("kernel " + launch_->kernel->name + " is divergent: of one warp some threads come to " +
                 name_of(pass_) + ", others to " + name_of(kind));
        }
        if (++position_ < kWarpLanes) {
            take_lane();
        } else {
            end_pass();
        }
        const unsigned next = threadIdx.x;
        if (next != thread) fibers_[next].resume(fibers_[thread], kind == Stop::done);
        threadIdx.x = thread;
    }

    // All lanes of a warp have come to the same stop.
    void end_pass() {
        if (pass_ == Stop::done || pass_ == Stop::barrier) {
            runnable_[place_] = runnable_[--runnable_count_];
            finished_ += pass_ == Stop::done ? 1 : 0;
        } else {
            Warp& warp = warps_[warp_];
            if (pass_ == Stop::matrix) multiply_matrices(warp.words[warp.turn]);
            warp.turn ^= 1;
            ++counters_->collectives;
        }
        if (runnable_count_ == 0) {
            if (finished_ == warp_count_) leave();
            if (finished_ > 0)
                fail("kernel " + launch_->kernel->name +
                     " is divergent: some warps end before a __syncthreads of others");
            ++barriers_;
            last_voices_ = voices_;
            voices_ = 0;
            all_may_run();
        }
        begin_pass();
    }

    [[noreturn]] void leave() {
        main_.resume(fibers_[threadIdx.x], true);
        __builtin_unreachable();
    }

    const Launch* launch_ = nullptr;
    Counters* counters_ = nullptr;
    Random random_;
    std::vector<Fiber> fibers_;
    Fiber main_;
    Mapping stacks_;
    Warp warps_[kMostWarps];
    unsigned warp_count_ = 0;
    uint8_t runnable_[kMostWarps];
    unsigned runnable_count_ = 0;
    unsigned finished_ = 0;  // warps
    uint64_t barriers_ = 0;
    int voices_ = 0;  // threads that came to the barrier under way with `true`
    int last_voices_ = 0;
    std::string failure_;
    // the pass under way
    unsigned place_ = 0, warp_ = 0, offset_ = 0, step_ = 1, flip_ = 0, position_ = 0;
    Stop pass_ = Stop::none;
};

}  // namespace

std::unique_ptr<BlockThreads> make_block_threads() {
    return std::make_unique<Fibers>();
}

}  // namespace freetoken::sim

#endif
