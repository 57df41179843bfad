#include "io/read.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace freetoken {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kWatchInterval = std::chrono::milliseconds(100);

struct Chunk {
    SourceFile* file;
    uint64_t offset;
    size_t size;
    uint8_t* target;
};

// The chunks, whoever takes the next one, and how it ended.
class Reading {
public:
    Reading(std::span<const FilePart> parts, const ReadOptions& options, FileSystem& system) {
        for (const FilePart& part : parts) {
            std::unique_ptr<SourceFile>& file = files_[part.path];
            if (!file) file = std::make_unique<SourceFile>(system, part.path, options.direct);
            for (size_t start = 0; start < part.size; start += options.chunk)
                chunks_.push_back(
                    {file.get(), part.offset + start, std::min(options.chunk, part.size - start), part.target + start});
        }
    }

    ~Reading() {
        stopping_ = true;
        for (std::thread& thread : threads_) thread.join();
    }

    // At least one thread, or std::system_error; fewer than wanted will do.
    void start(int wanted) {
        const size_t useful = std::min(chunks_.size(), static_cast<size_t>(std::max(1, wanted)));
        threads_.reserve(useful);
        while (threads_.size() < useful) {
            {
                const std::lock_guard lock(mutex_);
                ++working_;
            }
            try {
                threads_.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                const std::lock_guard lock(mutex_);
                --working_;
                if (threads_.empty()) throw;
                return;
            }
        }
    }

    // Whether all threads are done, which may take until `deadline`.
    bool wait_until(Clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        return finished_.wait_until(lock, deadline, [this] { return working_ == 0; });
    }

    void rethrow_failure() {
        if (failure_) std::rethrow_exception(failure_);
    }

    uint64_t done() const { return done_; }
    uint64_t direct() const { return direct_; }

private:
    void work() noexcept {
        try {
            for (size_t i; !stopping_ && (i = next_++) < chunks_.size();) {
                const Chunk& chunk = chunks_[i];
                direct_ += chunk.file->read(chunk.target, chunk.offset, chunk.size);
                done_ += chunk.size;
            }
        } catch (...) {
            stopping_ = true;
            const std::lock_guard lock(mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        if (--working_ == 0) finished_.notify_all();
    }

    std::map<std::string, std::unique_ptr<SourceFile>> files_;
    std::vector<Chunk> chunks_;
    std::atomic<size_t> next_{0};
    std::atomic<uint64_t> done_{0};
    std::atomic<uint64_t> direct_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable finished_;
    size_t working_ = 0;
    std::exception_ptr failure_;
    std::vector<std::thread> threads_;
};

}  // namespace

ReadReport read_files(std::span<const FilePart> parts, const ReadOptions& options, const ReadWatch& watch) {
    FileSystem system;
    return read_files(parts, options, watch, system);
}

ReadReport read_files(std::span<const FilePart> parts, const ReadOptions& options, const ReadWatch& watch,
                      FileSystem& system) {
    const Clock::time_point began = Clock::now();
    Reading reading(parts, options, system);
    reading.start(options.threads);
    for (Clock::time_point next = began + kWatchInterval; !reading.wait_until(next); next += kWatchInterval) {
        watch(reading.done());
        next = std::max(next, Clock::now() - kWatchInterval);  // a slow watcher is not called faster for it
    }
    reading.rethrow_failure();
    watch(reading.done());
    const std::chrono::duration<double> taken = Clock::now() - began;
    return {reading.done(), reading.direct(), taken.count()};
}

}  // namespace freetoken
