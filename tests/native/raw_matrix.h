// Random weights in every raw form, and an independent reading of these forms that uses nothing of native/ but the
// table of their sizes.
#pragma once

#include <vector>

#include "core/codec.h"
#include "random.h"

namespace freetoken::test {

template <class T>
inline T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
inline void store(uint8_t* p, T value) {
    std::memcpy(p, &value, sizeof value);
}

// A random matrix as a checkpoint holds it.
struct RawMatrix {
    Form form;
    int rows;
    int cols;
    std::vector<uint8_t> bytes;

    Codec codec() const { return form_info(form).codec; }
    const uint8_t* row(int r) const { return bytes.data() + static_cast<int64_t>(r) * raw_row_bytes(form, cols); }
    uint8_t* row(int r) { return bytes.data() + static_cast<int64_t>(r) * raw_row_bytes(form, cols); }
    // The raw block that holds weight k.
    const uint8_t* block(int r, int k) const { return row(r) + block_offset(k); }
    uint8_t* block(int r, int k) { return row(r) + block_offset(k); }

private:
    int64_t block_offset(int k) const {
        const FormInfo& info = form_info(form);
        return info.row_header + int64_t{k} / info.block * (info.scale_bytes + info.block * info.code_bits / 8);
    }
};

inline bool is_plain(Form form) {
    return form_info(form).block == 1;
}

// Gives a raw block, random in every bit, scales of the wanted kind.
inline void set_scales(Random& random, Form form, Scales scales, uint8_t* p) {
    switch (form) {
        case Form::q4_1:
        case Form::q5_1:
        case Form::q4_k:
        case Form::q5_k:
            store(p + 2, random_half(random, scales));
            [[fallthrough]];
        case Form::q8_0:
        case Form::q4_0:
        case Form::q5_0:
        case Form::iq4_nl:
        case Form::iq4_xs:
        case Form::int4_32:
            store(p, random_half(random, scales));
            return;
        case Form::int4_32z:
        case Form::int4_128z:
            store(p, random_half(random, scales));
            store(p + 2, static_cast<uint16_t>(random.between(0, 16)));
            return;
        case Form::q2_k:
            store(p + 80, random_half(random, scales));
            store(p + 82, random_half(random, scales));
            return;
        case Form::q3_k:
            store(p + 108, random_half(random, scales));
            return;
        case Form::q6_k:
            store(p + 208, random_half(random, scales));
            return;
        case Form::mxfp4:
        case Form::mxfp4_pairs:
        case Form::mxfp8:
            p[0] = random_e8m0(random, scales);
            return;
        case Form::nvfp4:
            p[0] = random_e4m3(random, scales);
            p[1] = random_e4m3(random, scales);
            return;
        case Form::fp8:
            store(p, random_factor(random, scales));
            return;
        case Form::f32:
        case Form::f16:
        case Form::bf16:
            return;
    }
}

inline void set_plain_value(Random& random, Form form, uint8_t* p) {
    const float value = random.normal();
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (form == Form::bf16) bits >>= 16;
    if (form == Form::f16) bits = random_half(random, Scales::ordinary);
    std::memcpy(p, &bits, static_cast<size_t>(form_info(form).code_bits / 8));
}

inline RawMatrix random_matrix(Random& random, Form form, int rows, int cols, Scales scales = Scales::ordinary) {
    RawMatrix m{form, rows, cols, {}};
    const FormInfo& info = form_info(form);
    m.bytes.resize(static_cast<size_t>(rows * raw_row_bytes(form, cols)));
    for (uint8_t& byte : m.bytes) {
        byte = static_cast<uint8_t>(random.bits());
        if (codec_info(info.codec).kind == CodecKind::scaled && (byte & 0x7F) == 0x7F) byte ^= 1;
    }
    for (int r = 0; r < rows; ++r) {
        if (info.row_header > 0) store(m.row(r), random_factor(random, scales));
        for (int k = 0; k < cols; k += info.block) {
            if (is_plain(form))
                set_plain_value(random, form, m.block(r, k));
            else
                set_scales(random, form, scales, m.block(r, k));
        }
    }
    return m;
}

inline RawMatrix random_matrix(Random& random, Codec codec, int rows, int cols, Scales scales = Scales::ordinary) {
    return random_matrix(random, form_of(codec), rows, cols, scales);
}

// --- reading

inline float half_value(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const int mantissa = h & 1023;
    const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                            : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                                             : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

inline float e4m3_value(uint8_t b) {
    const int exponent = b >> 3 & 15;
    const int mantissa = b & 7;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return (b & 0x80) != 0 ? -magnitude : magnitude;
}

inline float bfloat_value(uint16_t b) {
    const uint32_t bits = static_cast<uint32_t>(b) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The stored code of weight k, as an unsigned number; of plain values 0.
inline int raw_code(const RawMatrix& m, int row, int k) {
    const uint8_t* p = m.block(row, k);
    const int i = k % form_info(m.form).block;
    const auto split = [&](const uint8_t* codes) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; };
    const auto sequential = [&](const uint8_t* codes) { return codes[i / 2] >> i % 2 * 4 & 15; };
    const auto quarter = [&](const uint8_t* codes) { return codes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; };
    const auto layered = [&](const uint8_t* codes) { return codes[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15; };
    switch (m.form) {
        case Form::q8_0:
            return static_cast<int8_t>(p[2 + i]) + 128;
        case Form::q4_0:
        case Form::iq4_nl:
            return split(p + 2);
        case Form::q4_1:
            return split(p + 4);
        case Form::q5_0:
            return split(p + 6) | (p[2 + i / 8] >> i % 8 & 1) << 4;
        case Form::iq4_xs: {
            const uint8_t* own = p + 8 + i / 32 * 16;
            return i % 32 < 16 ? own[i % 16] & 15 : own[i % 16] >> 4;
        }
        case Form::q5_1:
            return split(p + 8) | (p[4 + i / 8] >> i % 8 & 1) << 4;
        case Form::mxfp4:
            return split(p + 1);
        case Form::mxfp4_pairs:
            return sequential(p + 1);
        case Form::q2_k:
            return quarter(p + 16);
        case Form::q3_k:
            return quarter(p + 32) | (p[i % 32] >> i / 32 & 1) << 2;
        case Form::q4_k:
            return layered(p + 16);
        case Form::q5_k:
            return layered(p + 48) | (p[16 + i % 32] >> i / 32 & 1) << 4;
        case Form::q6_k: {
            const int low = p[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
            return low | quarter(p + 128) << 4;
        }
        case Form::nvfp4:
        case Form::int4_32:
            return sequential(p + 2);
        case Form::int4_32z:
        case Form::int4_128z:
            return sequential(p + 4);
        case Form::fp8:
            return p[4 + i];
        case Form::mxfp8:
            return p[1 + i];
        case Form::f32:
        case Form::f16:
        case Form::bf16:
            break;
    }
    return 0;
}

// One weight as the contract sees it: ((scale * number) + minimum) times what raw_factor gives for its row.
struct Weight {
    float scale;
    float number;
    float minimum = 0.0f;
};

// Scale and minimum of block `b` of 32 in the twelve bytes of q4_k and q5_k.
inline Weight six_bits(const uint8_t* packed, int b) {
    const int scale = b < 4 ? packed[b] & 63 : (packed[b + 4] & 15) | packed[b - 4] >> 6 << 4;
    const int minimum = b < 4 ? packed[b + 4] & 63 : packed[b + 4] >> 4 | packed[b] >> 6 << 4;
    return {static_cast<float>(scale), 0.0f, static_cast<float>(minimum)};
}

// Scale `i` of sixteen in the twelve bytes of q3_k: four lower bits each in eight bytes, two upper ones in four.
inline int signed_six_bits(const uint8_t* packed, int i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    return (low | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
}

// Scale of block `b` of 32 in the six bytes of iq4_xs: two upper bits each in two bytes, four lower ones in four.
inline int scale_in_two(const uint8_t* packed, int b) {
    const int low = packed[2 + b / 2] >> b % 2 * 4 & 15;
    return (low | (packed[b / 4] >> b % 4 * 2 & 3) << 4) - 32;
}

inline Weight raw_weight(const RawMatrix& m, int row, int k) {
    static constexpr float e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static constexpr float iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const uint8_t* p = m.block(row, k);
    const int i = k % form_info(m.form).block;
    const int code = raw_code(m, row, k);
    const auto half = [&](int offset) { return half_value(load<uint16_t>(p + offset)); };
    const auto minus = [&](int zero) { return static_cast<float>(code - zero); };
    switch (m.form) {
        case Form::f32:
            return {load<float>(p), 1.0f};
        case Form::f16:
            return {half(0), 1.0f};
        case Form::bf16:
            return {bfloat_value(load<uint16_t>(p)), 1.0f};
        case Form::q8_0:
            return {half(0), minus(128)};
        case Form::q4_0:
        case Form::int4_32:
            return {half(0), minus(8)};
        case Form::q4_1:
        case Form::q5_1:
            return {half(0), minus(0), half(2)};
        case Form::iq4_nl:
            return {half(0), iq4_nl[code]};
        case Form::iq4_xs:
            return {half(0) * static_cast<float>(scale_in_two(p + 2, i / 32)), iq4_nl[code]};
        case Form::q5_0:
            return {half(0), minus(16)};
        case Form::mxfp4:
        case Form::mxfp4_pairs:
            return {std::ldexp(1.0f, p[0] - 127), e2m1_doubled[code]};
        case Form::q2_k:
            return {half(80) * static_cast<float>(p[i / 16] & 15), minus(0),
                    -(half(82) * static_cast<float>(p[i / 16] >> 4))};
        case Form::q3_k:
            return {half(108) * static_cast<float>(signed_six_bits(p + 96, i / 16)), minus(4)};
        case Form::q4_k:
        case Form::q5_k: {
            const Weight six = six_bits(p + 4, i / 32);
            return {half(0) * six.scale, minus(0), -(half(2) * six.minimum)};
        }
        case Form::q6_k:
            return {half(208) * static_cast<float>(static_cast<int8_t>(p[192 + i / 16])), minus(32)};
        case Form::nvfp4:
            return {e4m3_value(p[i / 16]) / 256.0f, e2m1_doubled[code]};
        case Form::int4_32z:
        case Form::int4_128z:
            return {half(0), minus(load<uint16_t>(p + 2))};
        case Form::fp8:
            return {load<float>(p), e4m3_value(static_cast<uint8_t>(code)) / 256.0f};
        case Form::mxfp8:
            return {std::ldexp(1.0f, p[0] - 127), e4m3_value(static_cast<uint8_t>(code)) / 256.0f};
    }
    return {};
}

// What q2_k and q3_k have for the halves of block `b` of 32: a weight is (d * scale) * number - dmin * minimum.
struct HalfTerms {
    float d;
    float dmin;
    int scale[2];
    int minimum[2];
};

inline HalfTerms half_terms(const RawMatrix& m, int row, int b) {
    const uint8_t* p = m.block(row, 32 * b);
    const auto half = [&](int offset) { return half_value(load<uint16_t>(p + offset)); };
    const int i = b % 8 * 2;
    if (m.form == Form::q3_k)
        return {half(108), 0.0f, {signed_six_bits(p + 96, i), signed_six_bits(p + 96, i + 1)}, {}};
    return {half(80), half(82), {p[i] & 15, p[i + 1] & 15}, {p[i] >> 4, p[i + 1] >> 4}};
}

// What the sum of a row is multiplied with in the end.
inline float raw_factor(const RawMatrix& m, int row) {
    switch (m.codec()) {
        case Codec::mxfp4:
            return 0.5f;
        case Codec::nvfp4:
            return load<float>(m.row(row)) * 128.0f;
        case Codec::int4_32:
        case Codec::int4_32z:
        case Codec::int4_128z:
            return load<float>(m.row(row));
        case Codec::fp8:
        case Codec::mxfp8:
            return 256.0f;
        default:
            return 1.0f;
    }
}

// The dequantised weight, exact in double precision.
inline double raw_value(const RawMatrix& m, int row, int k) {
    const Weight w = raw_weight(m, row, k);
    return (static_cast<double>(w.scale) * w.number + w.minimum) * raw_factor(m, row);
}

}  // namespace freetoken::test
