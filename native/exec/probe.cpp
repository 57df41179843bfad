#include "exec/probe.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "exec/expert_compute.h"

namespace freetoken {
namespace {

constexpr size_t kReadUnit = 256 * 1024;

// One phase, timed from its start to the end of its last task.
template <class Work>
class Timed final : public Job {
public:
    Timed(const Phase& phase, Work work) : phase_(phase), work_(std::move(work)) {}

    Phase next(int) override {
        const auto now = std::chrono::steady_clock::now();
        if (std::exchange(begun_, true)) {
            seconds_ = std::chrono::duration<double>(now - start_).count();
            return {};
        }
        start_ = now;
        return phase_;
    }
    void run(TaskRange tasks, int thread) override {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) work_(task, thread);
    }

    double seconds() const { return seconds_; }

private:
    const Phase phase_;
    Work work_;
    bool begun_ = false;
    std::chrono::steady_clock::time_point start_;
    double seconds_ = 0;
};

template <class Work>
double run_timed(Pool& pool, const Phase& phase, Work work) {
    if (phase.count == 0) return 0;
    Timed<Work> job(phase, std::move(work));
    pool.run(job);
    return job.seconds();
}

}  // namespace

Measured read_bandwidth(Pool& pool, const Machine& machine, const uint8_t* data, size_t bytes) {
    const size_t units = bytes / kReadUnit;
    std::atomic<uint64_t> digest{0};  // keeps the compiler from leaving the reading out
    const double seconds = run_timed(pool, {static_cast<uint32_t>(units)}, [&](uint32_t unit, int) {
        digest.fetch_xor(machine.kernels->read(data + unit * kReadUnit, kReadUnit), std::memory_order_relaxed);
    });
    return {static_cast<int64_t>(units * kReadUnit), seconds};
}

Measured expert_bandwidth(Pool& pool, const Machine& machine, const RecordLayout& layout, const uint8_t* records,
                          const std::vector<int32_t>& order) {
    const ExpertScratch scratch(machine, layout);
    const size_t scratch_bytes = (scratch.bytes() + 4095) / 4096 * 4096;
    const size_t out_stride = (static_cast<size_t>(layout.hidden) + 15) / 16 * 16;
    const Mapping memory(scratch_bytes * static_cast<size_t>(pool.size()));
    const Mapping out(out_stride * sizeof(float) * order.size());
    const PackedRows input(*machine.kernels, layout.input_form(), layout.hidden, 1);
    std::vector<float> x(static_cast<size_t>(layout.hidden));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 31) / 31.0f - 0.5f;
    input.pack(*machine.kernels, x.data(), 0);

    const Phase phase = {static_cast<uint32_t>(order.size()), 1, true};
    const double seconds = run_timed(pool, phase, [&](uint32_t task, int thread) {
        const ExpertRecord expert = {&layout, records + static_cast<size_t>(order[task]) * layout.bytes};
        run_expert(machine, Glu{}, expert, {input.row(0), input.stride, nullptr}, 1,
                   memory.data() + static_cast<size_t>(thread) * scratch_bytes, out.floats() + task * out_stride,
                   out_stride);
    });
    return {static_cast<int64_t>(order.size() * layout.bytes), seconds};
}

void matmul(Pool& pool, const Machine& machine, const PackedMatrix& matrix, const float* x, int tokens, float* y) {
    const PackedRows packed(*machine.kernels, activation_form(matrix.codec), matrix.cols, static_cast<size_t>(tokens));
    run_timed(pool, {static_cast<uint32_t>(tokens)}, [&](uint32_t token, int) {
        packed.pack(*machine.kernels, x + size_t{token} * static_cast<size_t>(matrix.cols), token);
    });
    run_timed(pool, {static_cast<uint32_t>(tile_count(matrix.rows))}, [&](uint32_t tile, int) {
        machine.kernels->gemm(matrix, static_cast<int>(tile), static_cast<int>(tile) + 1,
                              {packed.row(0), packed.stride, nullptr}, tokens, y, static_cast<size_t>(matrix.rows));
    });
}

}  // namespace freetoken
