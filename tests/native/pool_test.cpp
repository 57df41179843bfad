// The pool: every task once, phases in order, failures told, nothing lost when
// there are more threads than cores.
#include "pool/pool.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace freetoken::test {
namespace {

// Phases given as a list; `body` is called for each task.
class Listed final : public Job {
public:
    Listed(std::vector<Phase> phases, std::function<void(size_t, uint32_t)> body)
        : phases_(std::move(phases)), body_(std::move(body)) {}

    Phase next(int) override { return at_ < phases_.size() ? phases_[at_++] : Phase{}; }
    void run(TaskRange tasks, int) override {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) body_(at_ - 1, task);
    }

private:
    std::vector<Phase> phases_;
    std::function<void(size_t, uint32_t)> body_;
    size_t at_ = 0;
};

std::vector<int> unpinned(int threads) {
    return std::vector<int>(static_cast<size_t>(threads), -1);
}

}  // namespace

// The thread that ends a job may be stopped before it has told so; the caller must not be in the next job by then.
FREETOKEN_TEST(jobs_that_follow_each_other_at_once_do_not_get_into_each_others_way) {
    Pool pool(unpinned(6));
    std::atomic<int> ran{0};
    for (int i = 0; i < 20'000; ++i) {
        Listed job({{6, 1}}, [&](size_t, uint32_t) { ran.fetch_add(1, std::memory_order_relaxed); });
        pool.run(job);
    }
    CHECK(ran == 6 * 20'000, "%d tasks ran", ran.load());
}

FREETOKEN_TEST(every_task_runs_once_and_phases_follow_each_other) {
    for (int threads = 1; threads <= 6; ++threads) {
        Pool pool(unpinned(threads));
        std::vector<Phase> phases;
        for (uint32_t i = 0; i < 300; ++i) phases.push_back({1 + i * 37 % 101, 1 + i % 5, i % 3 == 0});
        phases.push_back({200'000, 1});  // more than a share can count one by one
        std::vector<std::vector<std::atomic<int>>> ran;
        for (const Phase& phase : phases) ran.emplace_back(phase.count);
        std::atomic<size_t> latest{0};
        Listed job(phases, [&](size_t phase, uint32_t task) {
            ran[phase][task].fetch_add(1);
            CHECK(latest.load() <= phase, "a task of phase %zu ran after phase %zu had started", phase, latest.load());
            latest.store(phase);
        });
        pool.run(job);
        for (size_t phase = 0; phase < phases.size(); ++phase) {
            for (const auto& count : ran[phase])
                CHECK(count == 1, "a task of phase %zu ran %d times", phase, count.load());
        }
    }
}

FREETOKEN_TEST(what_one_phase_writes_the_next_reads) {
    Pool pool(unpinned(4));
    std::vector<int> values(64, 0);  // plain integers: a thread sanitizer sees a missing order
    const std::vector<Phase> phases(400, Phase{64, 3});
    Listed job(phases, [&](size_t phase, uint32_t task) {
        const size_t other = (task + 1) % 64;
        if (phase % 2 == 0)
            values[task] = static_cast<int>(phase);
        else
            CHECK(values[other] == static_cast<int>(phase) - 1, "phase %zu read %d", phase, values[other]);
    });
    pool.run(job);
}

FREETOKEN_TEST(a_failure_ends_the_job_and_the_pool_lives_on) {
    Pool pool(unpinned(3));
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> later{0};
        Listed job({{20}, {20}, {20}}, [&](size_t phase, uint32_t task) {
            if (phase == 1 && task == 7) throw std::runtime_error("task seven");
            if (phase == 2) ++later;
        });
        std::string said;
        try {
            pool.run(job);
        } catch (const std::runtime_error& error) {
            said = error.what();
        }
        CHECK(said == "task seven" && later == 0, "\"%s\", %d later tasks", said.c_str(), later.load());
        std::atomic<int> ran{0};
        Listed fine({{10}}, [&](size_t, uint32_t) { ++ran; });
        pool.run(fine);
        CHECK(ran == 10, "%d tasks after a failure", ran.load());
    }
}

FREETOKEN_TEST(jobs_from_several_threads_take_turns) {
    Pool pool(unpinned(2));
    std::atomic<int> total{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
        callers.emplace_back([&] {
            for (int k = 0; k < 50; ++k) {
                Listed job({{9}, {9}}, [&](size_t, uint32_t) { ++total; });
                pool.run(job);
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(total == 4 * 50 * 18, "%d tasks", total.load());
}

FREETOKEN_TEST(threads_that_sleep_between_jobs_wake_up) {
    Pool pool(unpinned(4));
    for (int round = 0; round < 20; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        std::atomic<int> ran{0};
        Listed job({{16}}, [&](size_t, uint32_t) { ++ran; });
        pool.run(job);
        CHECK(ran == 16, "%d tasks", ran.load());
    }
}

FREETOKEN_TEST(a_pool_without_work_ends) {
    for (int i = 0; i < 50; ++i) Pool pool(unpinned(1 + i % 5));
    Pool pool(unpinned(2));
    Listed nothing({}, [](size_t, uint32_t) {});
    pool.run(nothing);
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
