// What the kernel tests share: a registry of tests, random weights in raw form, and an independent reading of the
// raw formats and of docs/numerics.md that uses nothing of native/ but the codec table.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/codec.h"
#include "kernels/kernels.h"

namespace freetoken::test {

struct Test {
    const char* name;
    std::function<void()> run;
};
std::vector<Test>& registry();
void fail(const char* file, int line, const std::string& what);

struct Register {
    Register(const char* name, std::function<void()> run) { registry().push_back({name, std::move(run)}); }
};

#define FREETOKEN_TEST(name)                                      \
    static void name();                                           \
    static const ::freetoken::test::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition, ...)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            char text_[512];                                                                   \
            std::snprintf(text_, sizeof text_, __VA_ARGS__);                                   \
            ::freetoken::test::fail(__FILE__, __LINE__, std::string(#condition ": ") + text_); \
        }                                                                                      \
    } while (0)

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
    float normal() { return std::normal_distribution<float>()(engine_); }
    uint32_t bits() { return static_cast<uint32_t>(engine_()); }
    template <class T>
    T pick(std::initializer_list<T> choices) { return choices.begin()[between(0, static_cast<int>(choices.size()) - 1)]; }

private:
    std::mt19937_64 engine_;
};

enum class Scales { ordinary, any, tiny, huge, zero };

// A random matrix as a checkpoint holds it.
struct RawMatrix {
    Codec codec;
    int rows;
    int cols;
    std::vector<uint8_t> bytes;

    const uint8_t* row(int r) const { return bytes.data() + static_cast<int64_t>(r) * raw_row_bytes(codec, cols); }
};
RawMatrix random_matrix(Random& random, Codec codec, int rows, int cols, Scales scales = Scales::ordinary);

enum class Values { normal, outliers, sparse, zero, subnormal, huge, tiny, extreme };
std::vector<float> random_row(Random& random, int cols, Values values);
inline constexpr int kValueKinds = 8;

// One weight, read from the raw form by its definition: scale and code (and minimum), in exact arithmetic.
struct Weight {
    float scale;
    int code;
    float minimum;
    double value() const { return static_cast<double>(scale) * code + minimum; }
};
Weight raw_weight(const RawMatrix& m, int row, int k);

// A packed matrix that owns its bytes, 64-byte aligned.
class Packed {
public:
    explicit Packed(const RawMatrix& raw);
    PackedMatrix view() const { return {codec_, rows_, cols_, data()}; }
    const uint8_t* data() const { return bytes_.data() + offset_; }
    size_t size() const { return size_; }

private:
    Codec codec_;
    int rows_;
    int cols_;
    std::vector<uint8_t> bytes_;
    size_t size_;
    size_t offset_;
};

// Packed activation rows of one table.
class PackedRows {
public:
    PackedRows(const Kernels& kernels, ActivationForm form, const std::vector<std::vector<float>>& rows);
    Activations view(const int32_t* index = nullptr) const { return {bytes_.data(), stride_, index}; }

private:
    size_t stride_;
    std::vector<uint8_t> bytes_;
};

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace freetoken::test
