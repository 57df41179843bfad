// Integer codecs: raw blocks to headers and lines of codes. docs/numerics.md has the layouts.
#include "core/bytes.h"
#include "core/pack_tile.h"

namespace freetoken {
namespace {

constexpr const char* kBadFactor = "a factor that is no finite number";
constexpr const char* kBadZero = "a zero point above 16";
constexpr int kLargestZero = 16;

constexpr uint32_t kLowNibbles = 0x0F0F0F0Fu;

using Fault = const char*;  // what is wrong with a raw block; null if nothing is

Fault check_half(uint16_t h) {
    return half_is_finite(h) ? nullptr : kBadScale;
}

// --- codes of 32 weights to four lines of nibbles, or eight of bytes; `lane` is the row's dword of the first line

// ggml puts weight i in the low nibble of byte i and weight i + 16 in the high one; ours are in order, eight a dword.
void pack_split_nibbles(const uint8_t* codes, uint8_t* lane) {
    for (int half = 0; half < 2; ++half) {
        const uint32_t first = load<uint32_t>(codes + 8 * half);
        const uint32_t second = load<uint32_t>(codes + 8 * half + 4);
        store(lane + 64 * half, (first & kLowNibbles) | (second & kLowNibbles) << 4);
        store(lane + 64 * (half + 2), (first >> 4 & kLowNibbles) | (second & ~kLowNibbles));
    }
}

// One nibble of each of 32 bytes: the low ones, or after a shift by 4 the high ones.
void pack_layered_nibbles(const uint8_t* codes, int shift, uint8_t* lane) {
    for (int line = 0; line < 4; ++line) {
        const uint32_t first = load<uint32_t>(codes + 8 * line) >> shift & kLowNibbles;
        const uint32_t second = load<uint32_t>(codes + 8 * line + 4) >> shift & kLowNibbles;
        store(lane + 64 * line, first | second << 4);
    }
}

// Four nibbles to four bytes.
uint32_t spread(uint32_t nibbles) {
    const uint32_t pairs = (nibbles | nibbles << 8) & 0x00FF00FFu;
    return (pairs | pairs << 4) & kLowNibbles;
}

// Four bits to the lowest ones of four bytes.
uint32_t spread_bits(uint32_t bits) {
    return (bits | bits << 7 | bits << 14 | bits << 21) & 0x01010101u;
}

// Fifth bits, that of weight i being bit i of four bytes, then nibbles as above.
void pack_five_bits(const uint8_t* codes, uint8_t* lane) {
    pack_split_nibbles(codes + 4, lane);
    const uint32_t fifth = load<uint32_t>(codes);
    uint32_t bits = 0;
    for (int part = 0; part < 8; ++part) bits |= spread_bits(fifth >> 4 * part & 15) << part;
    store(lane + 64 * 4, bits);
}

// Weight 2i in the low nibble of byte i, weight 2i + 1 in the high one.
void pack_sequential_nibbles(const uint8_t* codes, uint8_t* lane) {
    for (int line = 0; line < 4; ++line) {
        const uint32_t eight = load<uint32_t>(codes + 4 * line);
        store(lane + 64 * line, spread(eight & 0xFFFFu) | spread(eight >> 16) << 4);
    }
}

// One bit of each of 32 bytes, bit `place`, to a line of single bits.
void pack_single_bits(const uint8_t* bytes, int place, uint8_t* lane) {
    uint32_t bits = 0;
    for (int part = 0; part < 8; ++part) bits |= (load<uint32_t>(bytes + 4 * part) >> place & 0x01010101u) << part;
    store(lane, bits);
}

// Two bits of each of 32 bytes, those from bit 2 `layer` on, to two lines of pairs of bits.
void pack_bit_pairs(const uint8_t* bytes, int layer, uint8_t* lane) {
    for (int line = 0; line < 2; ++line) {
        uint32_t bits = 0;
        for (int part = 0; part < 4; ++part)
            bits |= (load<uint32_t>(bytes + 16 * line + 4 * part) >> 2 * layer & 0x03030303u) << 2 * part;
        store(lane + 64 * line, bits);
    }
}

// Codes of three bits, four to a dword, to three lines: two codes a byte, and of the last two a third of their bits.
void pack_three_bits(const uint32_t (&codes)[8], uint8_t* lane) {
    const uint32_t last = codes[6] | codes[7] << 3;
    for (int line = 0; line < 3; ++line)
        store(lane + 64 * line, codes[2 * line] | codes[2 * line + 1] << 3 | (last >> 2 * line & 0x03030303u) << 6);
}

// Signed bytes to unsigned codes.
void pack_signed_bytes(const uint8_t* codes, uint8_t* lane) {
    for (int line = 0; line < 8; ++line) store(lane + 64 * line, load<uint32_t>(codes + 4 * line) ^ 0x80808080u);
}

// --- the forms: check() a raw block, write its scales() into the header of the group where it is block `place`, and
// write the codes() of the i-th 32 weights of its `count` times 32

// A scale that is copied as it is, then codes of 32 weights.
template <Form F, class Scale, void (*Pack)(const uint8_t*, uint8_t*)>
struct PlainScale {
    static constexpr Form form = F;
    static void scales(const uint8_t* raw, int place, int row, uint8_t* header) {
        constexpr int size = sizeof(Scale);
        store(header + size * (kTileRows * place + row), load<Scale>(raw));
    }
    static void codes(const uint8_t* raw, int, uint8_t* lane) { Pack(raw + sizeof(Scale), lane); }
};

template <Form F, void (*Pack)(const uint8_t*, uint8_t*)>
struct HalfScale : PlainScale<F, uint16_t, Pack> {
    static Fault check(const uint8_t* raw) { return check_half(load<uint16_t>(raw)); }
};

using Q80 = HalfScale<Form::q8_0, pack_signed_bytes>;
using Q40 = HalfScale<Form::q4_0, pack_split_nibbles>;
using Q50 = HalfScale<Form::q5_0, pack_five_bits>;
using Iq4Nl = HalfScale<Form::iq4_nl, pack_split_nibbles>;
using Int4 = HalfScale<Form::int4_32, pack_sequential_nibbles>;

struct Q41 : PlainScale<Form::q4_1, uint32_t, pack_split_nibbles> {
    static Fault check(const uint8_t* raw) {
        return half_is_finite(load<uint16_t>(raw)) && half_is_finite(load<uint16_t>(raw + 2)) ? nullptr : kBadScale;
    }
};

struct Q51 : Q41 {
    static constexpr Form form = Form::q5_1;
    static void codes(const uint8_t* raw, int, uint8_t* lane) { pack_five_bits(raw + 4, lane); }
};

template <Form F, void (*Pack)(const uint8_t*, uint8_t*)>
struct PowerScale : PlainScale<F, uint8_t, Pack> {
    static Fault check(const uint8_t* raw) { return *raw != 255 ? nullptr : kBadScale; }
};

using Mxfp4 = PowerScale<Form::mxfp4, pack_split_nibbles>;
using Mxfp4Pairs = PowerScale<Form::mxfp4_pairs, pack_sequential_nibbles>;

struct Nvfp4 : PlainScale<Form::nvfp4, uint16_t, pack_sequential_nibbles> {
    static Fault check(const uint8_t* raw) {
        return (raw[0] & 0x7F) != 0x7F && (raw[1] & 0x7F) != 0x7F ? nullptr : kBadScale;
    }
};

Fault check_zero_point(const uint8_t* raw) {
    if (!half_is_finite(load<uint16_t>(raw))) return kBadScale;
    return load<uint16_t>(raw + 2) <= kLargestZero ? nullptr : kBadZero;
}

struct Int4Zero : PlainScale<Form::int4_32z, uint32_t, pack_sequential_nibbles> {
    static Fault check(const uint8_t* raw) { return check_zero_point(raw); }
};

struct Int4Zero128 {
    static constexpr Form form = Form::int4_128z;
    static Fault check(const uint8_t* raw) { return check_zero_point(raw); }
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 2 * row, load<uint16_t>(raw));
        header[2 * kTileRows + row] = raw[2];
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        pack_sequential_nibbles(raw + 4 + 16 * block, lane);
    }
};

// ggml's blocks of 256: the header has a line of fp16 of the whole block, then two bytes a row and block of 32,
// of iq4_xs one.
uint8_t* block_scales(uint8_t* header, int row, int block) {
    return header + kScaleLine + 2 * (kTileRows * block + row);
}

// Scales and minima of q4_k and q5_k: eight of six bits each in twelve bytes.
void unpack_six_bits(const uint8_t* packed, int row, uint8_t* header) {
    for (int block = 0; block < 4; ++block) {
        const uint8_t scale = packed[block];
        const uint8_t minimum = packed[block + 4];
        const uint8_t low = packed[block + 8];
        uint8_t* first = block_scales(header, row, block);
        uint8_t* second = block_scales(header, row, block + 4);
        first[0] = scale & 63;
        first[1] = minimum & 63;
        second[0] = static_cast<uint8_t>((low & 15) | scale >> 6 << 4);
        second[1] = static_cast<uint8_t>(low >> 4 | minimum >> 6 << 4);
    }
}

struct Q4K {
    static constexpr Form form = Form::q4_k;
    static Fault check(const uint8_t* raw) { return Q41::check(raw); }
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 4 * row, load<uint32_t>(raw));
        unpack_six_bits(raw + 4, row, header);
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        pack_layered_nibbles(raw + 16 + block / 2 * 32, block % 2 * 4, lane);
    }
};

struct Q5K {
    static constexpr Form form = Form::q5_k;
    static Fault check(const uint8_t* raw) { return Q41::check(raw); }
    static void scales(const uint8_t* raw, int place, int row, uint8_t* header) {
        Q4K::scales(raw, place, row, header);
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        const uint8_t* fifth = raw + 16;  // bit b of byte k belongs to weight k of block b
        pack_layered_nibbles(fifth + 32 + block / 2 * 32, block % 2 * 4, lane);
        pack_single_bits(fifth, block, lane + 64 * 4);
    }
};

struct Q6K {
    static constexpr Form form = Form::q6_k;
    static constexpr int kUpper = 128;   // of the bytes of a raw block: low nibbles, upper two bits,
    static constexpr int kScales = 192;  // int8 scales of sixteen weights each,
    static constexpr int kD = 208;       // and the fp16 scale of them all
    static Fault check(const uint8_t* raw) { return check_half(load<uint16_t>(raw + kD)); }
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 4 * row, static_cast<uint32_t>(load<uint16_t>(raw + kD)));
        for (int block = 0; block < 8; ++block)
            store(block_scales(header, row, block), load<uint16_t>(raw + kScales + 2 * block));
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        const int half = block / 4;   // of the 256 weights
        const int layer = block % 4;  // which two bits of a byte of upper bits
        pack_layered_nibbles(raw + 64 * half + layer % 2 * 32, layer / 2 * 4, lane);
        pack_bit_pairs(raw + kUpper + 32 * half, layer, lane + 64 * 4);
    }
};

struct Iq4Xs {
    static constexpr Form form = Form::iq4_xs;
    static Fault check(const uint8_t* raw) { return check_half(load<uint16_t>(raw)); }
    // Eight scales of six bits, 32 above what they are: two upper bits each in two bytes, then four lower ones in four.
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 4 * row, static_cast<uint32_t>(load<uint16_t>(raw)));
        const int upper = load<uint16_t>(raw + 2);
        for (int block = 0; block < 8; ++block) {
            const int low = raw[4 + block / 2] >> block % 2 * 4 & 15;
            const int high = upper >> 2 * block & 3;
            header[kScaleLine + kTileRows * block + row] = static_cast<uint8_t>((low | high << 4) - 32);
        }
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) { pack_split_nibbles(raw + 8 + 16 * block, lane); }
};

struct Q2K {
    static constexpr Form form = Form::q2_k;
    static constexpr int kCodes = 16;  // of the bytes of a raw block: bytes of a scale and a minimum, then codes,
    static constexpr int kD = 80;      // and the fp16 scale and minimum of them all
    static Fault check(const uint8_t* raw) { return Q41::check(raw + kD); }
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 4 * row, load<uint32_t>(raw + kD));
        for (int block = 0; block < 8; ++block)
            store(block_scales(header, row, block), load<uint16_t>(raw + 2 * block));
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        pack_bit_pairs(raw + kCodes + block / 4 * 32, block % 4, lane);
    }
};

struct Q3K {
    static constexpr Form form = Form::q3_k;
    static constexpr int kCodes = 32;   // of the bytes of a raw block: third bits, lower two bits,
    static constexpr int kScales = 96;  // sixteen scales of six bits, 32 above what they are,
    static constexpr int kD = 108;      // and the fp16 scale of them all
    static Fault check(const uint8_t* raw) { return check_half(load<uint16_t>(raw + kD)); }
    static void scales(const uint8_t* raw, int, int row, uint8_t* header) {
        store(header + 4 * row, static_cast<uint32_t>(load<uint16_t>(raw + kD)));
        const uint8_t* packed = raw + kScales;
        for (int i = 0; i < 16; ++i) {
            const int low = packed[i % 8] >> i / 8 * 4 & 15;
            const int high = packed[8 + i % 4] >> i / 4 * 2 & 3;
            block_scales(header, row, i / 2)[i % 2] = static_cast<uint8_t>((low | high << 4) - 32);
        }
    }
    static void codes(const uint8_t* raw, int block, uint8_t* lane) {
        const uint8_t* lower = raw + kCodes + block / 4 * 32;
        uint32_t codes[8];
        for (int part = 0; part < 8; ++part)
            codes[part] = (load<uint32_t>(lower + 4 * part) >> block % 4 * 2 & 0x03030303u) |
                          (load<uint32_t>(raw + 4 * part) >> block & 0x01010101u) << 2;
        pack_three_bits(codes, lane);
    }
};

// --- a tile

// The codes of 32 zero weights of sixteen rows.
void fill_zero_codes(Codec codec, uint8_t* lines) {
    const CodecInfo& info = codec_info(codec);
    const size_t bytes = static_cast<size_t>(info.code_bytes) * kTileRows;
    switch (codec) {
        case Codec::q8_0:
            std::memset(lines, 0x80, bytes);
            return;
        case Codec::q4_0:
        case Codec::int4_32:
            std::memset(lines, 0x88, bytes);
            return;
        case Codec::q3_k:  // 4: only the third bit of a code is not zero
            std::memset(lines, 0x24, kScaleLine);
            std::memset(lines + kScaleLine, 0x64, kScaleLine);
            std::memset(lines + 2 * kScaleLine, 0xA4, kScaleLine);
            return;
        case Codec::q5_0:  // 16: only the fifth bit is not zero
            std::memset(lines, 0, 4 * kScaleLine);
            std::memset(lines + 4 * kScaleLine, 0xFF, kScaleLine);
            return;
        case Codec::q6_k:  // 32: only the upper two bits are not zero
            std::memset(lines, 0, 4 * kScaleLine);
            std::memset(lines + 4 * kScaleLine, 0xAA, bytes - 4 * kScaleLine);
            return;
        default:
            std::memset(lines, 0, bytes);
    }
}

// The line of row factors. nvfp4 holds its factor times 2^7: kernels read its e4m3 scales as 2^-8 of themselves and its
// e2m1 codes doubled.
std::optional<BadValue> pack_row_line(Codec codec, const TileRows& rows, uint8_t* line) {
    for (int r = 0; r < kTileRows; ++r) {
        const float raw = rows[r] != nullptr ? load<float>(rows[r]) : 0.0f;
        const float factor = codec == Codec::nvfp4 ? raw * 128.0f : raw;
        if (!is_finite(factor)) return BadValue{r, -1, kBadFactor};
        store(line + 4 * r, factor);
    }
    return std::nullopt;
}

template <class Format>
std::optional<BadValue> pack_tile(const TileRows& rows, int64_t cols, uint8_t* tile) {
    constexpr FormInfo raw = form_info(Format::form);
    constexpr CodecInfo info = codec_info(raw.codec);
    constexpr int raw_block_bytes = raw.scale_bytes + raw.block * raw.code_bits / 8;
    constexpr int blocks_a_raw = raw.block / kBlock;
    constexpr int raw_a_group = info.group_blocks / blocks_a_raw;
    constexpr int lines_bytes = info.code_bytes * kTileRows;
    static_assert(raw_a_group * blocks_a_raw == info.group_blocks);
    if constexpr (info.row_line) {
        if (auto bad = pack_row_line(raw.codec, rows, tile)) return bad;
        tile += kScaleLine;
    }
    const int64_t blocks = cols / kBlock;
    uint8_t* header = tile;
    for (int64_t b = 0; b * blocks_a_raw < blocks; ++b) {
        const int place = static_cast<int>(b % raw_a_group);
        const int64_t left = blocks - b * blocks_a_raw;
        const int count = left < blocks_a_raw ? static_cast<int>(left) : blocks_a_raw;
        if (place == 0) {
            header = tile;
            std::memset(header, 0, info.header_lines * kScaleLine);
            tile += info.header_lines * kScaleLine;
        }
        if (rows[kTileRows - 1] == nullptr)
            for (int i = 0; i < count; ++i) fill_zero_codes(raw.codec, tile + i * lines_bytes);
        for (int r = 0; r < kTileRows && rows[r] != nullptr; ++r) {
            const uint8_t* block = rows[r] + raw.row_header + b * raw_block_bytes;
            if (const Fault fault = Format::check(block)) return BadValue{r, b, fault};
            Format::scales(block, place, r, header);
            for (int i = 0; i < count; ++i) Format::codes(block, i, tile + i * lines_bytes + 4 * r);
        }
        tile += count * lines_bytes;
    }
    return std::nullopt;
}

}  // namespace

std::optional<BadValue> pack_integer_tile(Form form, const TileRows& rows, int64_t cols, uint8_t* tile) {
    switch (form) {
        case Form::q8_0:
            return pack_tile<Q80>(rows, cols, tile);
        case Form::q4_0:
            return pack_tile<Q40>(rows, cols, tile);
        case Form::q4_1:
            return pack_tile<Q41>(rows, cols, tile);
        case Form::q5_0:
            return pack_tile<Q50>(rows, cols, tile);
        case Form::q5_1:
            return pack_tile<Q51>(rows, cols, tile);
        case Form::mxfp4:
            return pack_tile<Mxfp4>(rows, cols, tile);
        case Form::mxfp4_pairs:
            return pack_tile<Mxfp4Pairs>(rows, cols, tile);
        case Form::iq4_nl:
            return pack_tile<Iq4Nl>(rows, cols, tile);
        case Form::iq4_xs:
            return pack_tile<Iq4Xs>(rows, cols, tile);
        case Form::q2_k:
            return pack_tile<Q2K>(rows, cols, tile);
        case Form::q3_k:
            return pack_tile<Q3K>(rows, cols, tile);
        case Form::q4_k:
            return pack_tile<Q4K>(rows, cols, tile);
        case Form::q5_k:
            return pack_tile<Q5K>(rows, cols, tile);
        case Form::q6_k:
            return pack_tile<Q6K>(rows, cols, tile);
        case Form::nvfp4:
            return pack_tile<Nvfp4>(rows, cols, tile);
        case Form::int4_32:
            return pack_tile<Int4>(rows, cols, tile);
        case Form::int4_32z:
            return pack_tile<Int4Zero>(rows, cols, tile);
        case Form::int4_128z:
            return pack_tile<Int4Zero128>(rows, cols, tile);
        case Form::f32:
        case Form::f16:
        case Form::bf16:
        case Form::fp8:
        case Form::mxfp8:
            break;
    }
    __builtin_unreachable();
}

}  // namespace freetoken
