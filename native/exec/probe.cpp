#include "exec/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "exec/expert_compute.h"

namespace freetoken {
namespace {

constexpr size_t kReadUnit = 256 * 1024;

template <class Job>
double timed(Pool& pool, Job job) {
    std::chrono::steady_clock::time_point start;
    std::chrono::steady_clock::time_point end;
    pool.run([&](int thread) {
        pool.barrier([&] { start = std::chrono::steady_clock::now(); });
        job(thread);
        pool.barrier([&] { end = std::chrono::steady_clock::now(); });
    });
    return std::chrono::duration<double>(end - start).count();
}

}  // namespace

Measured read_bandwidth(Pool& pool, const Machine& machine, const uint8_t* data, size_t bytes) {
    const size_t units = bytes / kReadUnit;
    Tasks tasks(pool.size());
    tasks.reset(static_cast<uint32_t>(units), 1, false);
    std::atomic<uint64_t> digest{0};
    const double seconds = timed(pool, [&](int thread) {
        uint64_t seen = 0;
        TaskRange range;
        while (tasks.take(thread, range)) seen ^= machine.kernels->read(data + range.begin * kReadUnit, kReadUnit);
        digest.fetch_xor(seen, std::memory_order_relaxed);
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

    Tasks tasks(pool.size());
    tasks.reset(static_cast<uint32_t>(order.size()), 1, true);
    const double seconds = timed(pool, [&](int thread) {
        uint8_t* own = memory.data() + static_cast<size_t>(thread) * scratch_bytes;
        TaskRange range;
        while (tasks.take(thread, range)) {
            const ExpertRecord expert = {&layout, records + static_cast<size_t>(order[range.begin]) * layout.bytes};
            run_expert(machine, Glu{}, expert, {input.row(0), input.stride, nullptr}, 1, own,
                       out.floats() + range.begin * out_stride, out_stride);
        }
    });
    return {static_cast<int64_t>(order.size() * layout.bytes), seconds};
}

void matmul(Pool& pool, const Machine& machine, const PackedMatrix& matrix, const float* x, int tokens, float* y) {
    const PackedRows packed(*machine.kernels, activation_form(matrix.codec), matrix.cols, static_cast<size_t>(tokens));
    Tasks tasks(pool.size());
    tasks.reset(static_cast<uint32_t>(tile_count(matrix.rows)), 4, false);
    pool.run([&](int thread) {
        for (int t = thread; t < tokens; t += pool.size())
            packed.pack(*machine.kernels, x + static_cast<size_t>(t) * static_cast<size_t>(matrix.cols),
                        static_cast<size_t>(t));
        pool.barrier([] {});
        TaskRange range;
        while (tasks.take(thread, range))
            machine.kernels->gemm(matrix, static_cast<int>(range.begin), static_cast<int>(range.end),
                                  {packed.row(0), packed.stride, nullptr}, tokens, y,
                                  static_cast<size_t>(matrix.rows));
    });
}

}  // namespace freetoken
