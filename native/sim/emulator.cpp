#include "sim/emulator.h"

#include <mutex>

#include "core/float_mode.h"
#include "sim/block_runner.h"

namespace freetoken::sim {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kFewThreads = 1024;  // of a launch, which are done before other threads of the system wake up

void check(const KernelEntry& kernel, const Shape& shape) {
    const auto refuse = [&](const std::string& what) { throw KernelError("kernel " + kernel.name + " " + what); };
    if (shape.block == 0 || shape.block > kMostThreads || shape.block % kWarpLanes != 0)
        refuse("is launched with " + std::to_string(shape.block) + " threads a block");
    if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) refuse("is launched with an empty grid");
    if (shape.grid.x > 0x7FFFFFFFu || shape.grid.y > 65535 || shape.grid.z > 65535)
        refuse("is launched with a grid that is too large");
    if (shape.shared > SharedMemory::kDynamicBytes)
        refuse("is launched with " + std::to_string(shape.shared) + " bytes of dynamic shared memory");
    if (uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z > 0xFFFFFFFFu) refuse("is launched with too many blocks");
}

// The blocks of a launch, shared out to the threads of a pool.
class Blocks final : public Job {
public:
    Blocks(const Launch& launch, std::vector<std::unique_ptr<BlockRunner>>& runners)
        : launch_(launch),
          runners_(runners),
          count_(launch.grid.x * launch.grid.y * launch.grid.z),
          order_(count_, launch.seed) {}

    Phase next(int) override {
        const bool first = !started_;
        started_ = true;
        return {first ? count_ : 0, 1, false};
    }

    void run(TaskRange tasks, int thread) override {
        Counters mine;
        for (uint32_t i = tasks.begin; i < tasks.end; ++i) {
            const uint32_t b = order_[i];
            const Index block = {b % launch_.grid.x, b / launch_.grid.x % launch_.grid.y,
                                 b / launch_.grid.x / launch_.grid.y};
            Random random{launch_.seed + b};
            runners_[static_cast<size_t>(thread)]->run(launch_, block, random(), mine);
        }
        const std::lock_guard lock(mutex_);
        counters_.barriers = std::max(counters_.barriers, mine.barriers);
        counters_.collectives += mine.collectives;
        counters_.shared_atomics += mine.shared_atomics;
        counters_.global_atomics += mine.global_atomics;
    }

    uint32_t count() const { return count_; }
    const Counters& counters() const { return counters_; }

private:
    const Launch& launch_;
    std::vector<std::unique_ptr<BlockRunner>>& runners_;
    const uint32_t count_;
    const Shuffle order_;
    bool started_ = false;
    std::mutex mutex_;
    Counters counters_;
};

}  // namespace

Emulator::Emulator(int threads, uint64_t seed)
    : pool_(std::vector<int>(static_cast<size_t>(threads), -1)), state_(seed) {
    for (int i = 0; i < threads; ++i) runners_.push_back(std::make_unique<BlockRunner>());
}

Emulator::~Emulator() = default;

uint64_t Emulator::random() {
    Random random{state_};
    const uint64_t word = random();
    state_ = random.state;
    return word;
}

Counters Emulator::launch(const KernelEntry& kernel, const Shape& shape, const uint64_t* slots) {
    check(kernel, shape);
    const Launch launch = {&kernel, {shape.grid.x, shape.grid.y, shape.grid.z}, shape.block, shape.shared, slots,
                           random()};
    Blocks blocks(launch, runners_);
    if (runners_.size() == 1 || uint64_t{blocks.count()} * shape.block <= kFewThreads) {
        const FloatMode mode;
        blocks.run({0, blocks.count()}, 0);
    } else {
        pool_.run(blocks);
    }
    return blocks.counters();
}

}  // namespace freetoken::sim
