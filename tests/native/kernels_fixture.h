// What the kernel tests share: random weights in raw form, and an independent reading of the raw formats that uses
// nothing of native/ but the codec table.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "core/codec.h"
#include "core/pack.h"
#include "kernels/kernels.h"

namespace freetoken::test {

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
    float normal() { return std::normal_distribution<float>()(engine_); }
    uint32_t bits() { return static_cast<uint32_t>(engine_()); }
    template <class T>
    T pick(std::initializer_list<T> choices) {
        return choices.begin()[between(0, static_cast<int>(choices.size()) - 1)];
    }

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
template <class T>
inline T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

inline float half_value(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const int mantissa = h & 1023;
    const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                            : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                                             : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

inline uint16_t random_half(Random& random, Scales scales) {
    const uint16_t sign = static_cast<uint16_t>(random.between(0, 1) << 15);
    switch (scales) {
        case Scales::any:
            return static_cast<uint16_t>(sign | random.between(0, 0x7BFF));
        case Scales::tiny:
            return static_cast<uint16_t>(sign | random.between(0, 0x3FF));
        case Scales::huge:
            return static_cast<uint16_t>(sign | random.between(0x7000, 0x7BFF));
        case Scales::zero:
            return sign;
        case Scales::ordinary:
            break;
    }
    return static_cast<uint16_t>(sign | random.between(0x1000, 0x2800));
}

inline uint8_t random_e8m0(Random& random, Scales scales) {
    switch (scales) {
        case Scales::any:
            return static_cast<uint8_t>(random.between(0, 254));
        case Scales::tiny:
            return static_cast<uint8_t>(random.between(0, 6));
        case Scales::huge:
            return static_cast<uint8_t>(random.between(240, 254));
        case Scales::zero:
            return 0;
        case Scales::ordinary:
            break;
    }
    return static_cast<uint8_t>(random.between(112, 124));
}

inline void random_block(Random& random, Codec codec, Scales scales, uint8_t* out, int bytes) {
    for (int i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(random.bits());
    if (codec == Codec::mxfp4) {
        out[0] = random_e8m0(random, scales);
        return;
    }
    for (int i = 0; i < (codec == Codec::q4_1 ? 2 : 1); ++i) {
        const uint16_t h = random_half(random, scales);
        std::memcpy(out + 2 * i, &h, sizeof h);
    }
}

inline RawMatrix random_matrix(Random& random, Codec codec, int rows, int cols, Scales scales = Scales::ordinary) {
    RawMatrix m{codec, rows, cols, {}};
    m.bytes.resize(static_cast<size_t>(rows * raw_row_bytes(codec, cols)));
    const CodecInfo& info = codec_info(codec);
    for (size_t i = 0; i < m.bytes.size(); i += static_cast<size_t>(info.raw_block_bytes)) {
        uint8_t* p = m.bytes.data() + i;
        if (info.block > 1) {
            random_block(random, codec, scales, p, info.raw_block_bytes);
            continue;
        }
        const float value = random.normal();
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        if (codec == Codec::bf16) bits >>= 16;
        if (codec == Codec::f16) bits = random_half(random, Scales::ordinary);
        std::memcpy(p, &bits, static_cast<size_t>(info.raw_block_bytes));
    }
    return m;
}

enum class Values { normal, outliers, sparse, zero, subnormal, huge, tiny, extreme };
inline constexpr int kValueKinds = 8;

inline std::vector<float> random_row(Random& random, int cols, Values values) {
    std::vector<float> x(static_cast<size_t>(cols));
    for (float& v : x) {
        const float z = random.normal();
        switch (values) {
            case Values::normal:
                v = z;
                break;
            case Values::outliers:
                v = random.between(0, 99) == 0 ? 100.0f * z : z;
                break;
            case Values::sparse:
                v = random.between(0, 1) == 0 ? 0.0f : z;
                break;
            case Values::zero:
                v = random.between(0, 1) == 0 ? 0.0f : -0.0f;
                break;
            case Values::subnormal:
                v = z * 1e-40f;
                break;
            case Values::huge:
                v = z * std::pow(10.0f, static_cast<float>(random.between(0, 37)));
                break;
            case Values::tiny:
                v = z * std::pow(10.0f, static_cast<float>(-random.between(20, 38)));
                break;
            case Values::extreme:
                v = random.between(0, 1) == 0 ? 1.0f : -1.0f;
                break;
        }
        if (!std::isfinite(v)) v = 3e38f;
    }
    return x;
}

// One weight, read from the raw form by its definition: scale and code (and minimum), in exact arithmetic.
struct Weight {
    float scale;
    int code;
    float minimum;
    double value() const { return static_cast<double>(scale) * code + minimum; }
};
inline Weight raw_weight(const RawMatrix& m, int row, int k) {
    static constexpr int e2m1_doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const CodecInfo& info = codec_info(m.codec);
    const uint8_t* p = m.row(row) + static_cast<int64_t>(k / info.block) * info.raw_block_bytes;
    const int i = k % info.block;
    const auto nibble = [&](const uint8_t* codes) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; };
    switch (m.codec) {
        case Codec::f32:
            return {load<float>(p), 1, 0.0f};
        case Codec::f16:
            return {half_value(load<uint16_t>(p)), 1, 0.0f};
        case Codec::bf16: {
            const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(p)) << 16;
            float value;
            std::memcpy(&value, &bits, sizeof value);
            return {value, 1, 0.0f};
        }
        case Codec::q8_0:
            return {half_value(load<uint16_t>(p)), static_cast<int8_t>(p[2 + i]), 0.0f};
        case Codec::q4_0:
            return {half_value(load<uint16_t>(p)), nibble(p + 2) - 8, 0.0f};
        case Codec::q4_1:
            return {half_value(load<uint16_t>(p)), nibble(p + 4), half_value(load<uint16_t>(p + 2))};
        case Codec::mxfp4: {
            const int n = nibble(p + 1);
            return {std::ldexp(1.0f, p[0] - 128), (n & 8) != 0 ? -e2m1_doubled[n & 7] : e2m1_doubled[n & 7], 0.0f};
        }
    }
    return {};
}

// A packed matrix that owns its bytes, 64-byte aligned.
class Packed {
public:
    explicit Packed(const RawMatrix& raw)
        : codec_(raw.codec),
          rows_(raw.rows),
          cols_(raw.cols),
          size_(static_cast<size_t>(packed_bytes(codec_, rows_, cols_))) {
        bytes_.assign(size_ + 63, 0xEE);
        offset_ = (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
        if (pack_rows(codec_, raw.bytes.data(), rows_, cols_, bytes_.data() + offset_, tile_bytes(codec_, cols_)))
            fail(__FILE__, __LINE__, "a random matrix holds a bad scale");
    }
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
    PackedRows(const Kernels& kernels, ActivationForm form, const std::vector<std::vector<float>>& rows)
        : stride_(kernels.activation_bytes(form, static_cast<int>(rows[0].size()))),
          bytes_(rows.size() * stride_, 0xEE) {
        for (size_t t = 0; t < rows.size(); ++t)
            kernels.pack_activations(form, rows[t].data(), static_cast<int>(rows[t].size()),
                                     bytes_.data() + t * stride_);
    }
    Activations view(const int32_t* index = nullptr) const { return {bytes_.data(), stride_, index}; }

private:
    size_t stride_;
    std::vector<uint8_t> bytes_;
};

inline bool same_bits(float a, float b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace freetoken::test
