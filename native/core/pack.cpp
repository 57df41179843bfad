#include "core/pack.h"

#include <cstring>

namespace freetoken {
namespace {

using Rows = const uint8_t* [kTileRows];  // the rows of one tile; null for a row beyond the matrix

template <class T>
T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
void store(uint8_t* p, T value) {
    std::memcpy(p, &value, sizeof value);
}

constexpr uint32_t kLowNibbles = 0x0F0F0F0Fu;
constexpr uint32_t kHighNibbles = 0xF0F0F0F0u;

// ggml puts weight i in the low nibble of byte i and weight i + 16 in the high one; ours are in order, eight a dword.
void pack_nibbles(const uint8_t* codes, uint8_t* lane) {
    for (int half = 0; half < 2; ++half) {
        const uint32_t first = load<uint32_t>(codes + 8 * half);
        const uint32_t second = load<uint32_t>(codes + 8 * half + 4);
        store(lane + 64 * half, (first & kLowNibbles) | (second & kLowNibbles) << 4);
        store(lane + 64 * (half + 2), (first >> 4 & kLowNibbles) | (second & kHighNibbles));
    }
}

// Signed bytes to unsigned codes.
void pack_bytes(const uint8_t* codes, uint8_t* lane) {
    for (int line = 0; line < 8; ++line) store(lane + 64 * line, load<uint32_t>(codes + 4 * line) ^ 0x80808080u);
}

bool half_is_finite(uint32_t h) {
    return (h & 0x7C00u) != 0x7C00u;
}

// Each format: how a raw block opens (its scale, copied as it is), whether that scale is a number, and how codes lie.
struct Q80 {
    static constexpr Codec codec = Codec::q8_0;
    using Scale = uint16_t;
    static bool good(Scale s) { return half_is_finite(s); }
    static void pack(const uint8_t* codes, uint8_t* lane) { pack_bytes(codes, lane); }
};
struct Q40 {
    static constexpr Codec codec = Codec::q4_0;
    using Scale = uint16_t;
    static bool good(Scale s) { return half_is_finite(s); }
    static void pack(const uint8_t* codes, uint8_t* lane) { pack_nibbles(codes, lane); }
};
struct Q41 {
    static constexpr Codec codec = Codec::q4_1;
    using Scale = uint32_t;  // fp16 scale, then fp16 minimum
    static bool good(Scale s) { return half_is_finite(s & 0xFFFFu) && half_is_finite(s >> 16); }
    static void pack(const uint8_t* codes, uint8_t* lane) { pack_nibbles(codes, lane); }
};
struct Mxfp4 {
    static constexpr Codec codec = Codec::mxfp4;
    using Scale = uint8_t;
    static bool good(Scale s) { return s != 255; }
    static void pack(const uint8_t* codes, uint8_t* lane) { pack_nibbles(codes, lane); }
};

// The byte that codes a zero weight in every position.
constexpr int zero_byte(Codec codec) {
    return codec == Codec::q8_0 ? 0x80 : codec == Codec::q4_0 ? 0x88 : 0x00;
}

template <class Format>
std::optional<BadScale> pack_block_tile(const Rows& rows, int64_t cols, uint8_t* tile) {
    using Scale = typename Format::Scale;
    constexpr CodecInfo info = codec_info(Format::codec);
    static_assert(info.scale_bytes == sizeof(Scale));
    constexpr int tile_code_bytes = info.code_bytes * kTileRows;
    const int64_t blocks = cols / info.block;
    for (int64_t begin = 0; begin < blocks; begin += info.group_blocks) {
        const int64_t end = begin + info.group_blocks < blocks ? begin + info.group_blocks : blocks;
        uint8_t* scales = tile;
        std::memset(scales, 0, kScaleLine);
        tile += kScaleLine;
        for (int64_t b = begin; b < end; ++b, scales += info.scale_bytes * kTileRows, tile += tile_code_bytes) {
            if (rows[kTileRows - 1] == nullptr) std::memset(tile, zero_byte(Format::codec), tile_code_bytes);
            for (int r = 0; r < kTileRows && rows[r] != nullptr; ++r) {
                const uint8_t* raw = rows[r] + b * info.raw_block_bytes;
                const Scale scale = load<Scale>(raw);
                if (!Format::good(scale)) return BadScale{r, b, scale};
                store(scales + static_cast<size_t>(r) * sizeof(Scale), scale);
                Format::pack(raw + sizeof(Scale), tile + 4 * r);
            }
        }
    }
    return std::nullopt;
}

// Transposes a tile of plain values; two rows by two columns at a time where values are 16 bits wide.
void pack_words(const uint8_t* upper, const uint8_t* lower, int64_t cols, uint8_t* lane) {
    int64_t k = 0;
    for (; k + 2 <= cols; k += 2) {
        const uint32_t a = load<uint32_t>(upper + 2 * k);
        const uint32_t b = load<uint32_t>(lower + 2 * k);
        store(lane + 32 * k, (a & 0xFFFFu) | b << 16);
        store(lane + 32 * k + 32, a >> 16 | (b & 0xFFFF0000u));
    }
    if (k < cols)
        store(lane + 32 * k, static_cast<uint32_t>(load<uint16_t>(upper + 2 * k)) |
                                 static_cast<uint32_t>(load<uint16_t>(lower + 2 * k)) << 16);
}

void pack_dwords(const uint8_t* row, int64_t cols, uint8_t* lane) {
    for (int64_t k = 0; k < cols; ++k) store(lane + 64 * k, load<uint32_t>(row + 4 * k));
}

void pack_float_tile(int size, const Rows& rows, int64_t cols, uint8_t* tile, int64_t bytes) {
    constexpr int64_t kStrip = 32;  // columns at a time, so that the lines being filled stay in the first cache
    static constexpr uint8_t zeros[kStrip * 4] = {};
    const int64_t used = cols * size * kTileRows;
    std::memset(tile + used, 0, static_cast<size_t>(bytes - used));
    for (int64_t k = 0; k < cols; k += kStrip) {
        const int64_t n = cols - k < kStrip ? cols - k : kStrip;
        uint8_t* strip = tile + k * size * kTileRows;
        const auto source = [&](int r) { return rows[r] != nullptr ? rows[r] + k * size : zeros; };
        if (size == 4)
            for (int r = 0; r < kTileRows; ++r) pack_dwords(source(r), n, strip + 4 * r);
        else
            for (int r = 0; r < kTileRows; r += 2) pack_words(source(r), source(r + 1), n, strip + 2 * r);
    }
}

std::optional<BadScale> pack_tile(Codec codec, const Rows& rows, int64_t cols, uint8_t* tile) {
    switch (codec) {
        case Codec::q8_0:
            return pack_block_tile<Q80>(rows, cols, tile);
        case Codec::q4_0:
            return pack_block_tile<Q40>(rows, cols, tile);
        case Codec::q4_1:
            return pack_block_tile<Q41>(rows, cols, tile);
        case Codec::mxfp4:
            return pack_block_tile<Mxfp4>(rows, cols, tile);
        case Codec::f32:
        case Codec::f16:
        case Codec::bf16:
            break;
    }
    pack_float_tile(codec_info(codec).code_bytes, rows, cols, tile, tile_bytes(codec, cols));
    return std::nullopt;
}

// Block `block` of one lane of a tile, dequantised.
void unpack_block(Codec codec, const uint8_t* tile, int row, int64_t block, float (&out)[kBlock]) {
    const CodecInfo& info = codec_info(codec);
    const int tile_code_bytes = info.code_bytes * kTileRows;
    const int64_t within = block % info.group_blocks;
    const uint8_t* group = tile + block / info.group_blocks * (kScaleLine + info.group_blocks * tile_code_bytes);
    const uint8_t* scale = group + within * info.scale_bytes * kTileRows + row * info.scale_bytes;
    const uint8_t* codes = group + kScaleLine + within * tile_code_bytes + 4 * row;
    const float d = codec == Codec::mxfp4 ? e8m0_to_float(*scale) * info.post : half_to_float(load<uint16_t>(scale));
    const float minimum = codec == Codec::q4_1 ? half_to_float(load<uint16_t>(scale + 2)) : 0.0f;
    for (int k = 0; k < kBlock; ++k) {
        if (codec == Codec::q8_0) {
            out[k] = d * static_cast<float>(codes[k / 4 * 64 + k % 4] - info.zero);
            continue;
        }
        const uint8_t byte = codes[k / 8 * 64 + k % 4];
        const int nibble = k % 8 < 4 ? byte & 15 : byte >> 4;
        const int weight = codec == Codec::mxfp4 ? kE2m1Doubled[nibble] : nibble - info.zero;
        out[k] = codec == Codec::q4_1 ? fma(d, static_cast<float>(weight), minimum) : d * static_cast<float>(weight);
    }
}

float unpack_value(Codec codec, const uint8_t* p) {
    switch (codec) {
        case Codec::f16:
            return half_to_float(load<uint16_t>(p));
        case Codec::bf16:
            return bfloat_to_float(load<uint16_t>(p));
        default:
            return load<float>(p);
    }
}

}  // namespace

std::optional<BadScale> pack_rows(Codec codec, const uint8_t* raw, int64_t rows, int64_t cols, uint8_t* tiles,
                                  int64_t tile_stride) {
    const int64_t row_bytes = raw_row_bytes(codec, cols);
    for (int64_t first = 0; first < rows; first += kTileRows, tiles += tile_stride) {
        Rows tile_rows;
        for (int r = 0; r < kTileRows; ++r) tile_rows[r] = first + r < rows ? raw + (first + r) * row_bytes : nullptr;
        if (auto bad = pack_tile(codec, tile_rows, cols, tiles)) {
            bad->row += first;
            return bad;
        }
    }
    return std::nullopt;
}

void unpack_row(Codec codec, const uint8_t* tiles, int64_t row, int64_t cols, float* out) {
    const uint8_t* tile = tiles + row / kTileRows * tile_bytes(codec, cols);
    const int lane = static_cast<int>(row % kTileRows);
    if (is_float(codec)) {
        const int size = codec_info(codec).code_bytes;
        for (int64_t k = 0; k < cols; ++k) out[k] = unpack_value(codec, tile + (k * kTileRows + lane) * size);
        return;
    }
    for (int64_t b = 0; b < cols / kBlock; ++b) {
        float values[kBlock];
        unpack_block(codec, tile, lane, b, values);
        std::memcpy(out + b * kBlock, values, sizeof values);
    }
}

}  // namespace freetoken
