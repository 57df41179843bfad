// The worker beside a device, with a test as the device: bits of single experts, failures told, nothing answered twice
// or too late, whether words are written or functions called.
#include <ctime>
#include <functional>
#include <thread>

#include "core/float_mode.h"
#include "exec/expert_compute.h"
#include "exec_fixture.h"
#include "hybrid/expert_worker.h"

namespace freetoken::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<Glu> kActivations = {{}, {GluKind::clamped_silu, 1.7f, 2.0f}};  // of the layers of TinyModel

bool until(const std::function<bool()>& condition) {
    for (int i = 0; i < 20'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
}

// A mailbox, and the device at the other end of it.
class Device {
public:
    explicit Device(const MailboxShape& shape)
        : shape_(shape),
          memory_(static_cast<size_t>(shape.layout().bytes)),
          box(memory_.data(), memory_.bytes(), shape) {}

    // Fills in `rows` tokens with random inputs and ids, about one in four of them somebody else's.
    void route(Random& random, int rows, int top_k) {
        header().rows = static_cast<uint32_t>(rows);
        header().top_k = static_cast<uint32_t>(top_k);
        for (int pair = 0; pair < rows * top_k; ++pair)
            ids()[pair] = random.between(0, 3) == 0 ? -1 : random.between(0, TinyShape::experts - 1);
        for (int token = 0; token < rows; ++token) {
            const std::vector<float> x = random_row(random, shape_.hidden, Values::outliers);
            std::copy(x.begin(), x.end(), box.inputs() + static_cast<size_t>(token) * stride());
        }
        std::fill_n(box.outputs(), static_cast<size_t>(rows * top_k) * stride(), kUntouched);
    }
    void request(int layer) {
        box.done().store(0, std::memory_order_relaxed);
        box.request().store(static_cast<uint32_t>(layer) + 1, std::memory_order_release);
    }
    bool answered(int layer) const {
        return box.done().load(std::memory_order_acquire) == static_cast<uint32_t>(layer) + 1;
    }
    bool ask(int layer) {
        request(layer);
        return until([&] { return answered(layer); });
    }
    bool failed() const { return box.failed().load(std::memory_order_acquire) != 0; }

    int rows() { return static_cast<int>(header().rows); }
    int top_k() { return static_cast<int>(header().top_k); }
    int32_t* ids() { return const_cast<int32_t*>(box.ids()); }
    size_t stride() const { return mailbox_row_stride(static_cast<uint64_t>(shape_.hidden)); }
    const float* output(int pair) const { return box.outputs() + static_cast<size_t>(pair) * stride(); }

    static constexpr float kUntouched = 12345.0f;

private:
    MailboxHeader& header() { return *reinterpret_cast<MailboxHeader*>(memory_.data()); }

    const MailboxShape shape_;
    Mapping memory_;

public:
    const MailboxView box;
};

struct Options {
    const char* isa = "scalar";
    int threads = 1;
    std::chrono::nanoseconds patience = seconds(60);
};

std::unique_ptr<ExpertWorker> make_worker(const TinyModel& model, const Device& device, const MailboxShape& shape,
                                          const Options& options) {
    auto share = std::make_unique<CpuShare>(model.spec.banks, kActivations, shape, device.box,
                                            *kernels_for(options.isa), *operations_for(options.isa),
                                            std::vector<int>(static_cast<size_t>(options.threads), -1));
    return std::make_unique<ExpertWorker>(device.box, std::move(share), options.patience);
}

// Pairs of the mailbox whose row is not what one expert gives for one token, or that was not left alone.
int wrong_pairs(const TinyModel& model, Device& device, int layer, const char* isa) {
    ExpertRecords records;
    for (const BankSpec& bank : model.spec.banks) records.add(bank);
    const Machine machine = {kernels_for(isa), operations_for(isa), 1};
    const FloatMode mode;
    int wrong = 0;
    for (int pair = 0; pair < device.rows() * device.top_k(); ++pair) {
        const float* row = device.output(pair);
        const int expert = device.ids()[pair];
        if (expert < 0) {
            wrong += row[0] == Device::kUntouched ? 0 : 1;
            continue;
        }
        const ExpertRecord& record = records.of_layer(layer)[static_cast<size_t>(expert)];
        const ExpertScratch scratch(machine, *record.layout);
        Mapping memory(scratch.bytes());
        const freetoken::PackedRows input(*machine.kernels, record.layout->input_form(), TinyShape::hidden, 1);
        input.pack(*machine.kernels, device.box.inputs() + static_cast<size_t>(pair / device.top_k()) * device.stride(),
                   0);
        std::vector<float> wanted(TinyShape::hidden);
        run_expert(machine, kActivations[static_cast<size_t>(layer)], record,
                   {{input.row(0), input.stride, nullptr}, nullptr, nullptr}, 1, memory.data(), wanted.data(),
                   wanted.size());
        wrong += std::memcmp(row, wanted.data(), wanted.size() * sizeof(float)) == 0 ? 0 : 1;
    }
    return wrong;
}

double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Long for one thread: thousands of pairs of the scalar kernels.
constexpr MailboxShape kLarge = {1200, 8, TinyShape::hidden};
constexpr MailboxShape kSmall = {64, 4, TinyShape::hidden};

}  // namespace

FREETOKEN_TEST(every_pair_gets_the_bits_of_its_expert_and_others_are_left_alone) {
    Random random(5);
    for (const Codec codec : {Codec::q4_0, Codec::mxfp4, Codec::bf16, Codec::fp8}) {
        const TinyModel model(codec, 3);
        for (const Kernels* kernels : available_kernels()) {
            for (int threads = 1; threads <= 3; ++threads) {
                Device device(kSmall);
                const auto worker = make_worker(model, device, kSmall, {kernels->name, threads});
                for (int step = 0; step < 4; ++step) {
                    CHECK(worker->wake(), "step %d", step);
                    for (int layer = 0; layer < 2; ++layer) {
                        device.route(random, random.pick({1, 1, 2, 7, 64}), random.between(1, 4));
                        CHECK(device.ask(layer) && !device.failed(), "layer %d: %s", layer, worker->failure().c_str());
                        const int wrong = wrong_pairs(model, device, layer, kernels->name);
                        CHECK(wrong == 0, "%d pairs of %d tokens, %s, %d threads", wrong, device.rows(), kernels->name,
                              threads);
                    }
                    worker->doze();
                }
                CHECK(worker->counters().requests == 8, "%d requests", static_cast<int>(worker->counters().requests));
            }
        }
    }
}

FREETOKEN_TEST(nothing_to_do_is_answered_and_counted) {
    const TinyModel model(Codec::q4_0);
    Device device(kSmall);
    const auto worker = make_worker(model, device, kSmall, {});
    Random random(1);
    worker->wake();
    device.route(random, 3, 2);
    std::fill_n(device.ids(), 6, -1);
    for (int layer : {0, 1, 0, 1}) CHECK(device.ask(layer) && !device.failed(), "layer %d", layer);
    device.route(random, 0, 2);
    CHECK(device.ask(1) && !device.failed(), "no tokens at all");
    const WorkerCounters counters = worker->counters();
    CHECK(counters.requests == 5 && counters.empty == 5 && counters.experts == 0 && counters.bytes == 0, "%d, %d",
          static_cast<int>(counters.requests), static_cast<int>(counters.empty));
}

FREETOKEN_TEST(a_sleeping_worker_answers_nothing_and_takes_no_time) {
    const TinyModel model(Codec::q4_0);
    Device device(kSmall);
    const auto worker = make_worker(model, device, kSmall, {"scalar", 2});
    Random random(1);
    device.route(random, 2, 2);
    worker->wake();
    CHECK(device.ask(0), "awake");
    worker->doze();
    std::this_thread::sleep_for(milliseconds(20));
    device.request(1);
    const double before = cpu_seconds();
    std::this_thread::sleep_for(milliseconds(200));
    const double used = cpu_seconds() - before;
    CHECK(used < 0.02, "%f s in a fifth of a second", used);
    CHECK(!device.answered(1), "answered while asleep");
    worker->wake();
    std::this_thread::sleep_for(milliseconds(5));
    CHECK(!device.answered(1), "a request from before the step was answered");
    CHECK(device.ask(1), "awake again");
}

FREETOKEN_TEST(what_cannot_be_computed_fails_the_step_and_no_later_one) {
    const TinyModel model(Codec::q4_0);
    Device device(kSmall);
    const auto worker = make_worker(model, device, kSmall, {"scalar", 2});
    Random random(1);
    const std::pair<int, std::function<void()>> wrong[] = {
        {0, [&] { device.ids()[1] = TinyShape::experts; }},
        {2, [] {}},
        {1,
         [&] {
             device.route(random, 2, 2);
             *reinterpret_cast<uint32_t*>(device.box.inputs()) = 0;
             device.ids()[0] = 99;
         }},
    };
    for (const auto& [layer, spoil] : wrong) {
        CHECK(worker->wake(), "wake");
        device.route(random, 2, 2);
        spoil();
        CHECK(device.ask(layer) && device.failed(), "layer %d", layer);
        const std::string said = worker->failure();
        CHECK(said.find("MoE layer " + std::to_string(layer)) != std::string::npos, "\"%s\"", said.c_str());
        device.route(random, 2, 2);
        CHECK(device.ask(1) && device.failed(), "the rest of the step is answered and lost");
        CHECK(device.output(0)[0] == Device::kUntouched, "and not computed");
        CHECK(worker->wake() && worker->failure().empty() && !device.failed(), "the next step");
        device.route(random, 2, 2);
        CHECK(device.ask(1) && !device.failed() && wrong_pairs(model, device, 1, "scalar") == 0, "its bits");
    }
}

FREETOKEN_TEST(a_share_that_is_too_large_for_the_mailbox_is_refused) {
    const TinyModel model(Codec::q4_0);
    Device device(kLarge);
    const auto worker = make_worker(model, device, kSmall, {});
    Random random(1);
    worker->wake();
    device.route(random, kSmall.max_tokens + 1, 1);
    CHECK(device.ask(0) && device.failed(), "too many tokens");
    worker->wake();
    device.route(random, 1, kSmall.top_k + 1);
    CHECK(device.ask(0) && device.failed(), "too many places");
}

FREETOKEN_TEST(the_watchdog_answers_for_a_slow_worker_and_the_next_step_works) {
    const TinyModel model(Codec::q4_0);
    Device device(kLarge);
    const auto worker = make_worker(model, device, kLarge, {"scalar", 1, milliseconds(40)});
    Random random(1);
    for (int round = 0; round < 2; ++round) {
        CHECK(until([&] { return worker->wake(); }), "idle at last");
        device.route(random, kLarge.max_tokens, kLarge.top_k);
        CHECK(device.ask(0) && device.failed(), "a job of a thousand tokens within 40 ms");
        CHECK(worker->failure().find("longer than 0.04 s") != std::string::npos, "\"%s\"", worker->failure().c_str());
        CHECK(device.ask(1), "the rest of the step is answered, the worker being stuck or not");
        worker->doze();
        // A slow machine may be late for the small step too: what counts is that one works in the end.
        CHECK(until([&] {
                  if (!worker->wake()) return false;
                  device.route(random, 2, 2);
                  return device.ask(1) && !device.failed();
              }),
              "a step after the failure");
        CHECK(wrong_pairs(model, device, 1, "scalar") == 0, "its bits");
        worker->doze();
    }
}

// Neither the time that it slept nor the failure of the step before counts against a step.
FREETOKEN_TEST(the_watchdog_begins_anew_with_every_step) {
    const TinyModel model(Codec::q4_0);
    Device device(kSmall);
    const auto worker = make_worker(model, device, kSmall, {"scalar", 1, milliseconds(300)});
    Random random(1);
    for (int step = 0; step < 5; ++step) {
        worker->wake();
        device.route(random, 2, 2);
        CHECK(device.ask(1) && !device.failed(), "step %d: %s", step, worker->failure().c_str());
        device.ids()[0] = TinyShape::experts;
        CHECK(device.ask(1) && device.failed(), "an expert that is not there");
        worker->doze();
        std::this_thread::sleep_for(milliseconds(310));
    }
}

FREETOKEN_TEST(a_step_does_not_begin_while_the_worker_is_stuck_in_an_older_one) {
    const TinyModel model(Codec::q4_0);
    Device device(kLarge);
    const auto worker = make_worker(model, device, kLarge, {"scalar", 1, milliseconds(1)});
    Random random(1);
    int refused = 0;
    for (int round = 0; round < 3; ++round) {
        CHECK(until([&] { return worker->wake(); }), "idle at last");
        device.route(random, kLarge.max_tokens, kLarge.top_k);
        CHECK(device.ask(0) && device.failed(), "a job of a thousand tokens within 1 ms");
        worker->doze();
        if (worker->wake()) continue;  // it was quick for once
        ++refused;
        CHECK(!worker->failure().empty(), "what failed is forgotten");
    }
    CHECK(refused > 0, "no step was refused");
}

FREETOKEN_TEST(a_worker_that_ends_answers_what_is_pending) {
    const TinyModel model(Codec::q4_0);
    Random random(1);
    {
        Device device(kSmall);
        auto worker = make_worker(model, device, kSmall, {});
        device.route(random, 2, 2);
        device.request(1);  // nobody is awake
        worker.reset();
        CHECK(device.answered(1) && device.failed(), "asked of a sleeping worker");
    }
    for (int round = 0; round < 20; ++round) {
        Device device(kSmall);
        auto worker = make_worker(model, device, kSmall, {"scalar", 1 + round % 2});
        worker->wake();
        device.route(random, 64, 4);
        device.request(0);
        std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
        worker.reset();
        CHECK(device.answered(0), "round %d", round);
        CHECK(device.failed() || wrong_pairs(model, device, 0, "scalar") == 0, "answered with wrong rows");
    }
}

FREETOKEN_TEST(two_workers_do_not_meet) {
    const TinyModel models[2] = {TinyModel(Codec::q4_0, 1), TinyModel(Codec::q8_0, 2)};
    std::vector<std::thread> devices;
    for (int i = 0; i < 2; ++i) {
        devices.emplace_back([&, i] {
            Device device(kSmall);
            const auto worker = make_worker(models[i], device, kSmall, {"scalar", 2});
            Random random(static_cast<uint64_t>(i));
            for (int step = 0; step < 10; ++step) {
                CHECK(worker->wake(), "wake");
                for (int layer = 0; layer < 2; ++layer) {
                    device.route(random, random.between(1, 8), 2);
                    CHECK(device.ask(layer) && !device.failed(), "device %d", i);
                    CHECK(wrong_pairs(models[i], device, layer, "scalar") == 0, "device %d", i);
                }
                worker->doze();
            }
        });
    }
    for (std::thread& device : devices) device.join();
}

FREETOKEN_TEST(a_device_may_call_functions_instead) {
    const TinyModel model(Codec::q4_0);
    Device device(kLarge);
    Random random(1);
    {
        const auto worker = make_worker(model, device, kLarge, {"scalar", 2});
        for (int step = 0; step < 5; ++step) {
            worker->wake();
            for (int layer = 0; layer < 2; ++layer) {
                device.route(random, 3, 2);
                ExpertWorker::host_function(worker->argument(layer));
                CHECK(device.answered(layer) && !device.failed(), "step %d", step);
                CHECK(wrong_pairs(model, device, layer, "scalar") == 0, "step %d", step);
            }
            worker->doze();
        }
        ExpertWorker::host_function(worker->argument(0));
        CHECK(device.answered(0) && device.failed(), "a call of a sleeping worker");
    }
    {
        const auto worker = make_worker(model, device, kLarge, {"scalar", 1, milliseconds(20)});
        worker->wake();
        device.route(random, kLarge.max_tokens, kLarge.top_k);
        ExpertWorker::host_function(worker->argument(1));
        CHECK(device.answered(1) && device.failed(), "a caller of a slow worker");
    }
    auto worker = make_worker(model, device, kLarge, {});
    worker->wake();
    device.route(random, kLarge.max_tokens, kLarge.top_k);
    device.box.done().store(99);  // until the caller is in
    std::thread caller([argument = worker->argument(0)] { ExpertWorker::host_function(argument); });
    CHECK(until([&] { return device.box.done().load() == 0; }), "called");
    worker.reset();
    caller.join();
    CHECK(device.answered(0), "a caller of a worker that ends");
}

FREETOKEN_TEST(what_fits_no_mailbox_or_model_is_refused) {
    const TinyModel model(Codec::q4_0);
    Device device(kSmall);
    const auto refused = [](const std::function<void()>& make) {
        try {
            make();
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    };
    Mapping memory(4096);
    CHECK(refused([&] { MailboxView(memory.data(), memory.bytes(), kSmall); }), "too small a block");
    CHECK(refused([&] { MailboxView(memory.data() + 4, memory.bytes() - 4, {1, 1, 16}); }), "a block across lines");
    CHECK(refused([&] { MailboxView(memory.data(), memory.bytes(), {1, 0, 16}); }), "no places");
    MailboxShape wide = kSmall;
    wide.hidden += 1;
    CHECK(refused([&] { make_worker(model, Device(wide), wide, {}); }), "experts of another width");
    const auto layers = [&](const std::vector<Glu>& activations) {
        CpuShare(model.spec.banks, activations, kSmall, device.box, *kernels_for("scalar"), *operations_for("scalar"),
                 {-1});
    };
    CHECK(refused([&] { layers({{}, {}, {}}); }), "a layer without a bank");
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
