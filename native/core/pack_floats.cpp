// Plain values and 8-bit floats under scales: transpositions of sixteen rows.
#include "core/bytes.h"
#include "core/pack_tile.h"

namespace freetoken {
namespace {

constexpr int64_t kStrip = 32;  // columns at a time, so that the lines being filled stay in the first cache

// Two rows by two columns at a time.
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

// What is added to a value, eight bytes of them at a time, so that the magnitude of one that is Inf or NaN, whose
// exponent is all ones, carries into its sign.
struct Carry {
    uint64_t magnitudes;
    uint64_t step;
};

constexpr Carry carry_of(Codec codec) {
    if (codec == Codec::f32) return {0x7FFFFFFF7FFFFFFFu, 0x0080000000800000u};
    return {0x7FFF7FFF7FFF7FFFu, codec == Codec::bf16 ? 0x0080008000800080u : 0x0400040004000400u};
}

// Whether any of n bytes of values is Inf or NaN.
bool holds_no_number(const uint8_t* values, int64_t n, Carry carry) {
    uint64_t carries = 0;
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) carries |= (load<uint64_t>(values + k) & carry.magnitudes) + carry.step;
    if (k < n) {
        uint64_t last = 0;
        std::memcpy(&last, values + k, static_cast<size_t>(n - k));
        carries |= (last & carry.magnitudes) + carry.step;
    }
    return (carries & ~carry.magnitudes) != 0;
}

// --- 8-bit floats

constexpr int kLargestBlock = 128;

// Bytes 0 and 2 of either dword of x, in order.
uint32_t even_bytes(uint64_t x) {
    x &= 0x00FF00FF00FF00FFu;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
    return static_cast<uint32_t>(x | x >> 16);
}

// A run of four columns of two rows: 16-bit words of columns 0 and 2, then of 1 and 3.
void pack_run(uint32_t upper, uint32_t lower, uint8_t* lane) {
    const uint64_t both = upper | static_cast<uint64_t>(lower) << 32;
    store(lane, even_bytes(both));
    store(lane + 32, even_bytes(both >> 8));
}

// The first n < 4 bytes, filled up with zeros.
uint32_t short_dword(const uint8_t* p, int64_t n) {
    uint32_t value = 0;
    std::memcpy(&value, p, static_cast<size_t>(n));
    return value;
}

void pack_bytes(const uint8_t* upper, const uint8_t* lower, int64_t cols, uint8_t* lane) {
    int64_t k = 0;
    for (; k + 4 <= cols; k += 4) pack_run(load<uint32_t>(upper + k), load<uint32_t>(lower + k), lane + 16 * k);
    if (k < cols) pack_run(short_dword(upper + k, cols - k), short_dword(lower + k, cols - k), lane + 16 * k);
}

// Whether any of n e4m3 codes is 0x7f or 0xff: adding 1 to the magnitude carries into the sign.
bool holds_nan(const uint8_t* codes, int64_t n) {
    constexpr uint64_t magnitudes = 0x7F7F7F7F7F7F7F7Fu;
    constexpr uint64_t ones = 0x0101010101010101u;
    uint64_t carries = 0;
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) carries |= (load<uint64_t>(codes + k) & magnitudes) + ones;
    for (; k < n; ++k) carries |= (codes[k] & 0x7Fu) + 1u;
    return (carries & ~magnitudes) != 0;
}

// The scale of a raw block, as the packed header keeps it; false if it is no number.
bool copy_scale(Form form, const uint8_t* raw, uint8_t* header, int row) {
    if (form == Form::mxfp8) {
        header[row] = *raw;
        return *raw != 255;
    }
    store(header + 4 * row, load<uint32_t>(raw));
    return is_finite(load<float>(raw));
}

}  // namespace

std::optional<BadValue> pack_plain_tile(Codec codec, const TileRows& rows, int64_t cols, uint8_t* tile) {
    static constexpr uint8_t zeros[kStrip * 4] = {};
    const int size = codec_info(codec).code_bytes;
    const int64_t used = cols * size * kTileRows;
    std::memset(tile + used, 0, static_cast<size_t>(tile_bytes(codec, cols) - used));
    for (int r = 0; r < kTileRows; ++r)
        if (rows[r] != nullptr && holds_no_number(rows[r], cols * size, carry_of(codec)))
            return BadValue{r, -1, "a weight that is no finite number"};
    for (int64_t k = 0; k < cols; k += kStrip) {
        const int64_t n = cols - k < kStrip ? cols - k : kStrip;
        uint8_t* strip = tile + k * size * kTileRows;
        const auto source = [&](int r) { return rows[r] != nullptr ? rows[r] + k * size : zeros; };
        if (size == 4)
            for (int r = 0; r < kTileRows; ++r) pack_dwords(source(r), n, strip + 4 * r);
        else
            for (int r = 0; r < kTileRows; r += 2) pack_words(source(r), source(r + 1), n, strip + 2 * r);
    }
    return std::nullopt;
}

std::optional<BadValue> pack_scaled_tile(Form form, const TileRows& rows, int64_t cols, uint8_t* tile) {
    static constexpr uint8_t zeros[kLargestBlock] = {};
    const FormInfo& raw = form_info(form);
    const CodecInfo& info = codec_info(raw.codec);
    uint8_t* header = tile;
    for (int64_t block = 0; block * raw.block < cols; ++block) {
        const int64_t begin = block * raw.block;
        const int64_t n = cols - begin < raw.block ? cols - begin : raw.block;
        if (block % info.group_blocks == 0) {
            header = tile;
            std::memset(header, 0, kScaleLine);
            tile += kScaleLine;
        }
        const uint8_t* codes[kTileRows];
        for (int r = 0; r < kTileRows; ++r) {
            if (rows[r] == nullptr) {
                codes[r] = zeros;
                continue;
            }
            const uint8_t* source = rows[r] + block * (raw.scale_bytes + raw.block);
            codes[r] = source + raw.scale_bytes;
            if (!copy_scale(form, source, header, r)) return BadValue{r, block, kBadScale};
            if (holds_nan(codes[r], n)) return BadValue{r, block, "a weight that is no number"};
        }
        for (int r = 0; r < kTileRows; r += 2) pack_bytes(codes[r], codes[r + 1], n, tile + 2 * r);
        header += info.scale_bytes * kTileRows;
        tile += padded_cols(raw.codec, n) * kTileRows;
    }
    return std::nullopt;
}

}  // namespace freetoken
