// What the kernel tests share: packed matrices and packed activations.
#pragma once

#include "check.h"
#include "core/pack.h"
#include "kernels/kernels.h"
#include "raw_matrix.h"

namespace freetoken::test {

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

// A packed matrix that owns its bytes, 64-byte aligned.
class Packed {
public:
    explicit Packed(const RawMatrix& raw)
        : codec_(raw.codec()),
          rows_(raw.rows),
          cols_(raw.cols),
          size_(static_cast<size_t>(packed_bytes(codec_, rows_, cols_))) {
        bytes_.assign(size_ + 63, 0xEE);
        offset_ = (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
        if (pack_rows(raw.form, raw.bytes.data(), rows_, cols_, bytes_.data() + offset_, tile_bytes(codec_, cols_)))
            fail(__FILE__, __LINE__, "a random matrix holds a bad value");
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
