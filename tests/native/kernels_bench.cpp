// Speed of the expert kernels against the read loop of the same table, in the same run.
//
//   kernels_bench [--isa NAME] [--codecs a,b] [--parts decode,prefill] [--threads 1,2] [--rounds N] [--hidden N]
//                 [--width N]
//
// Records hold one expert (gate_up, then down), lie 4096-aligned in huge pages and are visited in random order, each
// by one thread. A decode sample is a read pass, an expert pass and a read pass; its ratio is the expert's rate over
// the mean of the reads around it. Samples during which something else ran are taken again.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/codec_names.h"
#include "core/float_mode.h"
#include "kernels_fixture.h"

namespace freetoken::bench {
namespace {

constexpr size_t kPoolBytes = size_t{256} << 20;
constexpr int kMaxTokens = 64;

struct Options {
    std::string isa;
    std::vector<std::string> codecs;
    std::vector<std::string> parts = {"decode", "prefill"};
    std::vector<int> threads;
    int rounds = 9;
    int hidden = 1024;
    int width = 512;
};

// Time this thread has spent on a processor. Nothing measured here waits, so on a quiet machine that is the time by the
// clock, and on a busy one the turns of others are left out.
double seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<int> allowed_cpus() {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    return cpus;
}

// Runs work(thread) on `threads` pinned threads at once; returns the seconds of the slowest.
double run_on(int threads, const std::function<void(int)>& work) {
    static const std::vector<int> cpus = allowed_cpus();
    std::vector<double> taken(static_cast<size_t>(threads));
    std::barrier start(threads);
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t)
        team.emplace_back([&, t] {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(cpus[static_cast<size_t>(t) % cpus.size()], &set);
            pthread_setaffinity_np(pthread_self(), sizeof set, &set);
            const FloatMode mode;
            start.arrive_and_wait();
            const double begin = seconds();
            work(t);
            taken[static_cast<size_t>(t)] = seconds() - begin;
        });
    for (std::thread& thread : team) thread.join();
    return *std::max_element(taken.begin(), taken.end());
}

// Tasks that want to run on this machine now, this one included.
int running_tasks() {
    static const int fd = open("/proc/stat", O_RDONLY);
    char text[16384];
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return 1;
    text[n] = 0;
    const char* field = std::strstr(text, "procs_running ");
    return field != nullptr ? std::atoi(field + 14) : 1;
}

long involuntary_switches() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

// Takes a sample while nothing else runs, or the last of ten.
double quiet(const std::function<double()>& sample, int* noisy) {
    double value = 0.0;
    for (int attempt = 0; attempt < 10; ++attempt) {
        const bool calm_before = running_tasks() <= 1;
        const long switches = involuntary_switches();
        value = sample();
        if (calm_before && running_tasks() <= 1 && involuntary_switches() - switches <= 2) return value;
        usleep(20000);
    }
    ++*noisy;
    return value;
}

std::string summary(std::vector<double> v, const char* format) {
    std::sort(v.begin(), v.end());
    char text[96];
    std::snprintf(text, sizeof text, format, v[v.size() / 2], v.front(), v.back());
    return text;
}

// The e4m3 nearest to a value.
uint8_t nearest_e4m3(float value) {
    int best = 0;
    for (int code = 1; code < 0x7F; ++code)
        if (std::fabs(test::e4m3_value(static_cast<uint8_t>(code)) - std::fabs(value)) <
            std::fabs(test::e4m3_value(static_cast<uint8_t>(best)) - std::fabs(value)))
            best = code;
    return static_cast<uint8_t>(best | (value < 0.0f ? 0x80 : 0));
}

// A matrix of random weights. 8-bit floats are normally distributed, four deviations being the largest code, as they
// are in models: of codes drawn evenly one in sixteen would be zero or subnormal, which costs some kernels time.
test::RawMatrix weights(test::Random& random, Codec codec, int rows, int cols) {
    test::RawMatrix m = test::random_matrix(random, codec, rows, cols);
    const FormInfo& info = form_info(m.form);
    if (codec_info(codec).kind == CodecKind::scaled)
        for (int r = 0; r < rows; ++r)
            for (int k = 0; k < cols; ++k)
                m.block(r, k)[info.scale_bytes + k % info.block] = nearest_e4m3(112.0f * random.normal());
    return m;
}

// Experts in one codec, and what a thread needs to run them.
class Experts {
public:
    Experts(const Kernels& kernels, Codec codec, int hidden, int width)
        : kernels_(kernels), codec_(codec), hidden_(hidden), width_(width) {
        gate_up_bytes_ = static_cast<size_t>(packed_bytes(codec, 2 * width, hidden));
        bytes_ = gate_up_bytes_ + static_cast<size_t>(packed_bytes(codec, hidden, width));
        stride_ = (bytes_ + 4095) / 4096 * 4096;
        count_ = kPoolBytes / stride_;
        map_ = mmap(nullptr, count_ * stride_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map_ == MAP_FAILED) {
            std::fprintf(stderr, "cannot map %zu bytes\n", count_ * stride_);
            std::exit(1);
        }
        data_ = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(map_) + kHuge - 1) / kHuge * kHuge);
        madvise(data_, count_ * stride_, MADV_HUGEPAGE);
        fill();
        for (size_t i = 0; i < count_; ++i) order_.push_back(i);
        std::shuffle(order_.begin(), order_.end(), std::mt19937(5));
    }
    ~Experts() { munmap(map_, count_ * stride_ + kHuge); }
    Experts(const Experts&) = delete;
    Experts& operator=(const Experts&) = delete;

    size_t count() const { return count_; }
    size_t bytes() const { return bytes_; }
    double macs() const { return 3.0 * hidden_ * width_; }
    const uint8_t* record(size_t i) const { return data_ + order_[i % count_] * stride_; }

    struct Scratch {
        std::vector<float> gate_up, h, y;
        std::vector<uint8_t> x, packed_h;
    };
    Scratch scratch(int tokens) const {
        const ActivationForm form = activation_form(codec_);
        const size_t n = static_cast<size_t>(tokens);
        Scratch s{std::vector<float>(n * 2 * static_cast<size_t>(width_)),
                  std::vector<float>(static_cast<size_t>(width_)), std::vector<float>(n * static_cast<size_t>(hidden_)),
                  std::vector<uint8_t>(n * kernels_.activation_bytes(form, hidden_)),
                  std::vector<uint8_t>(n * kernels_.activation_bytes(form, width_))};
        test::Random random(3);
        for (size_t t = 0; t < n; ++t) {
            const auto row = test::random_row(random, hidden_, test::Values::normal);
            kernels_.pack_activations(form, row.data(), hidden_,
                                      s.x.data() + t * kernels_.activation_bytes(form, hidden_));
        }
        return s;
    }

    void run(const uint8_t* record, int tokens, Scratch& s) const {
        const ActivationForm form = activation_form(codec_);
        const size_t x_stride = kernels_.activation_bytes(form, hidden_);
        const size_t h_stride = kernels_.activation_bytes(form, width_);
        const size_t gate_up_stride = 2 * static_cast<size_t>(width_);
        kernels_.gemm({codec_, 2 * width_, hidden_, record}, 0, 2 * width_ / kTileRows, {s.x.data(), x_stride, nullptr},
                      tokens, s.gate_up.data(), gate_up_stride);
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
            kernels_.glu_tiles({}, s.gate_up.data() + t * gate_up_stride, nullptr, nullptr, width_, s.h.data());
            kernels_.pack_activations(form, s.h.data(), width_, s.packed_h.data() + t * h_stride);
        }
        kernels_.gemm({codec_, hidden_, width_, record + gate_up_bytes_}, 0, hidden_ / kTileRows,
                      {s.packed_h.data(), h_stride, nullptr}, tokens, s.y.data(), static_cast<size_t>(hidden_));
    }

private:
    static constexpr size_t kHuge = size_t{2} << 20;

    void fill() {
        test::Random random(1);
        const test::Packed gate_up(weights(random, codec_, 2 * width_, hidden_));
        const test::Packed down(weights(random, codec_, hidden_, width_));
        for (size_t i = 0; i < count_; ++i) {
            std::memcpy(data_ + i * stride_, gate_up.data(), gate_up.size());
            std::memcpy(data_ + i * stride_ + gate_up.size(), down.data(), down.size());
        }
    }

    const Kernels& kernels_;
    Codec codec_;
    int hidden_;
    int width_;
    size_t gate_up_bytes_ = 0;
    size_t bytes_ = 0;
    size_t stride_ = 0;
    size_t count_ = 0;
    void* map_ = nullptr;
    uint8_t* data_ = nullptr;
    std::vector<size_t> order_;
};

void bench_decode(const Kernels& kernels, const Experts& experts, int threads, int rounds) {
    std::vector<Experts::Scratch> scratch(static_cast<size_t>(threads), experts.scratch(1));
    std::vector<uint64_t> digest(static_cast<size_t>(threads) * 8);
    const double bytes = static_cast<double>(experts.count() * experts.bytes());
    const auto each_record = [&](int thread, const std::function<void(const uint8_t*)>& visit) {
        for (size_t i = static_cast<size_t>(thread); i < experts.count(); i += static_cast<size_t>(threads))
            visit(experts.record(i));
    };
    const auto read_pass = [&] {
        return run_on(threads, [&](int t) {
            each_record(t, [&](const uint8_t* r) {
                digest[static_cast<size_t>(t) * 8] ^= kernels.read(r, experts.bytes() / 256 * 256);
            });
        });
    };
    const auto expert_pass = [&] {
        return run_on(threads, [&](int t) {
            each_record(t, [&](const uint8_t* r) { experts.run(r, 1, scratch[static_cast<size_t>(t)]); });
        });
    };
    std::vector<double> reads, rates, ratios;
    int noisy = 0;
    for (int round = 0; round < rounds; ++round) {
        double read_rate = 0.0;
        double expert_rate = 0.0;
        ratios.push_back(quiet(
            [&] {
                const double before = read_pass();
                const double expert = expert_pass();
                const double after = read_pass();
                read_rate = 2 * bytes / (before + after) / 1e9;
                expert_rate = bytes / expert / 1e9;
                return expert_rate / read_rate;
            },
            &noisy));
        reads.push_back(read_rate);
        rates.push_back(expert_rate);
    }
    std::printf("  decode  %d thread%s read %s  expert %s GB/s  ratio %s  noisy %d\n", threads, threads > 1 ? "s" : " ",
                summary(reads, "%5.1f [%.1f-%.1f]").c_str(), summary(rates, "%5.1f [%.1f-%.1f]").c_str(),
                summary(ratios, "%.2f [%.2f-%.2f]").c_str(), noisy);
}

void bench_prefill(const Experts& experts, int threads, int rounds) {
    std::printf("  prefill %d thread%s GMAC/s", threads, threads > 1 ? "s" : " ");
    std::vector<Experts::Scratch> scratch(static_cast<size_t>(threads), experts.scratch(kMaxTokens));
    int noisy = 0;
    size_t next = 0;
    for (const int tokens : {1, 2, 4, 8, 16, 64}) {
        const size_t records = static_cast<size_t>(threads) * static_cast<size_t>(std::max(4, 128 / tokens));
        std::vector<double> rates;
        for (int round = 0; round < rounds; ++round) {
            rates.push_back(quiet(
                [&] {
                    const double time = run_on(threads, [&](int t) {
                        for (size_t i = static_cast<size_t>(t); i < records; i += static_cast<size_t>(threads))
                            experts.run(experts.record(next + i), tokens, scratch[static_cast<size_t>(t)]);
                    });
                    next += records;
                    return static_cast<double>(records) * experts.macs() * tokens / time / 1e9;
                },
                &noisy));
        }
        std::printf("  T=%d %s", tokens, summary(rates, "%.0f [%.0f-%.0f]").c_str());
    }
    std::printf("  noisy %d\n", noisy);
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

[[noreturn]] void usage(const std::string& what) {
    std::fprintf(stderr, "kernels_bench: %s\n", what.c_str());
    std::exit(2);
}

Options parse(int argc, char** argv) {
    Options options;
    options.isa = best_kernels().name;
    for (const CodecInfo& info : kCodecs) options.codecs.emplace_back(codec_name(info.codec));
    for (int n = 1; n <= static_cast<int>(std::min<size_t>(2, allowed_cpus().size())); ++n)
        options.threads.push_back(n);
    for (int i = 1; i < argc; i += 2) {
        const std::string flag = argv[i];
        if (i + 1 == argc) usage(flag + " wants a value");
        const std::string value = argv[i + 1];
        if (flag == "--isa") {
            options.isa = value;
        } else if (flag == "--codecs") {
            options.codecs = split(value);
        } else if (flag == "--parts") {
            options.parts = split(value);
        } else if (flag == "--threads") {
            options.threads.clear();
            for (const std::string& part : split(value))
                options.threads.push_back(std::max(1, std::atoi(part.c_str())));
        } else if (flag == "--rounds") {
            options.rounds = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--hidden") {
            options.hidden = std::atoi(value.c_str());
        } else if (flag == "--width") {
            options.width = std::atoi(value.c_str());
        } else {
            usage("unknown flag " + flag);
        }
    }
    for (const std::string& part : options.parts)
        if (part != "decode" && part != "prefill") usage("unknown part " + part);
    if (options.hidden <= 0 || options.hidden % 256 != 0 || options.width <= 0 || options.width % 256 != 0)
        usage("--hidden and --width want positive multiples of 256");
    return options;
}

void run(const Options& options) {
    const Kernels* kernels = kernels_for(options.isa);
    if (kernels == nullptr) usage("this machine has no table " + options.isa);
    for (const std::string& name : options.codecs) {
        const auto codec = codec_by_name(name);
        if (!codec) usage("unknown codec " + name);
        const Experts experts(*kernels, *codec, options.hidden, options.width);
        std::printf("%s %s, hidden %d, width %d, record %.0f KiB, %zu records\n", kernels->name, name.c_str(),
                    options.hidden, options.width, static_cast<double>(experts.bytes()) / 1024, experts.count());
        for (const std::string& part : options.parts)
            for (const int threads : options.threads) {
                if (part == "decode") bench_decode(*kernels, experts, threads, options.rounds);
                if (part == "prefill") bench_prefill(experts, threads, options.rounds);
            }
        std::fflush(stdout);
    }
}

}  // namespace
}  // namespace freetoken::bench

int main(int argc, char** argv) {
    freetoken::bench::run(freetoken::bench::parse(argc, argv));
}
