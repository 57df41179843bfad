// Packing: tiles against the layout written out here, round trips, and scales that must be refused.
#include "core/float_mode.h"
#include "core/pack.h"
#include "kernels_fixture.h"

namespace freetoken::test {
namespace {

// The byte-by-byte layout of docs/numerics.md.
std::vector<uint8_t> lay_out(const RawMatrix& m) {
    const CodecInfo& info = codec_info(m.codec);
    std::vector<uint8_t> tiles(static_cast<size_t>(packed_bytes(m.codec, m.rows, m.cols)), 0);
    const size_t tile_size = static_cast<size_t>(tile_bytes(m.codec, m.cols));
    for (int row = 0; row < (m.rows + 15) / 16 * 16; ++row) {
        uint8_t* tile = tiles.data() + static_cast<size_t>(row / 16) * tile_size;
        const size_t r = static_cast<size_t>(row % 16);
        if (info.block == 1) {
            const size_t size = static_cast<size_t>(info.code_bytes);
            for (int k = 0; k < m.cols && row < m.rows; ++k)
                std::memcpy(tile + (static_cast<size_t>(k) * 16 + r) * size, m.row(row) + static_cast<size_t>(k) * size,
                            size);
            continue;
        }
        const size_t code_bytes = static_cast<size_t>(info.code_bytes) * 16;
        const size_t scale_bytes = static_cast<size_t>(info.scale_bytes);
        const size_t group_blocks = static_cast<size_t>(info.group_blocks);
        for (size_t b = 0; b < static_cast<size_t>(m.cols / 32); ++b) {
            uint8_t* group = tile + b / group_blocks * (64 + group_blocks * code_bytes);
            uint8_t* codes = group + 64 + b % group_blocks * code_bytes;
            if (row < m.rows)
                std::memcpy(group + b % group_blocks * scale_bytes * 16 + r * scale_bytes,
                            m.row(row) + static_cast<int64_t>(b) * info.raw_block_bytes, scale_bytes);
            for (size_t k = 0; k < 32; ++k) {
                const uint8_t* raw = m.row(row) + static_cast<int64_t>(b) * info.raw_block_bytes + scale_bytes;
                if (m.codec == Codec::q8_0) {
                    codes[k / 4 * 64 + r * 4 + k % 4] = row < m.rows ? static_cast<uint8_t>(raw[k] + 128) : 128;
                    continue;
                }
                const int zero = m.codec == Codec::q4_0 ? 8 : 0;
                const int nibble = row >= m.rows ? zero : k < 16 ? raw[k] & 15 : raw[k - 16] >> 4;
                codes[k / 8 * 64 + r * 4 + k % 4] |= static_cast<uint8_t>(nibble << (k % 8 < 4 ? 0 : 4));
            }
        }
    }
    return tiles;
}

}  // namespace

FREETOKEN_TEST(tiles_have_the_documented_layout) {
    Random random(3);
    for (const CodecInfo& info : kCodecs)
        for (int i = 0; i < 30; ++i) {
            const int cols = info.block == 1 ? random.between(1, 70) : 32 * random.between(1, 9);
            const RawMatrix raw = random_matrix(random, info.codec, random.between(1, 50), cols,
                                                random.pick({Scales::ordinary, Scales::any}));
            const Packed packed(raw);
            const auto expected = lay_out(raw);
            CHECK(packed.size() == expected.size() && std::memcmp(packed.data(), expected.data(), expected.size()) == 0,
                  "%s rows %d cols %d", info.name.data(), raw.rows, cols);
        }
}

FREETOKEN_TEST(unpacked_rows_are_the_raw_weights) {
    Random random(4);
    for (const CodecInfo& info : kCodecs)
        for (int i = 0; i < 20; ++i) {
            const int cols = info.block == 1 ? random.between(1, 70) : 32 * random.between(1, 9);
            const RawMatrix raw = random_matrix(random, info.codec, random.between(1, 40), cols,
                                                random.pick({Scales::ordinary, Scales::any, Scales::tiny}));
            const Packed packed(raw);
            std::vector<float> out(static_cast<size_t>(cols) + 1, 7.0f);
            for (int row = 0; row < raw.rows; ++row) {
                unpack_row(info.codec, packed.data(), row, cols, out.data());
                for (int k = 0; k < cols; ++k) {
                    const float expected = static_cast<float>(raw_weight(raw, row, k).value());
                    CHECK(out[static_cast<size_t>(k)] == expected, "%s row %d k %d: %a, not %a", info.name.data(), row,
                          k, static_cast<double>(out[static_cast<size_t>(k)]), static_cast<double>(expected));
                }
                CHECK(out[static_cast<size_t>(cols)] == 7.0f, "%s wrote beyond the row", info.name.data());
            }
        }
}

FREETOKEN_TEST(rows_packed_in_ranges_and_in_turn_are_the_same) {
    Random random(6);
    for (const CodecInfo& info : kCodecs) {
        const int cols = info.block == 1 ? 37 : 160;
        const RawMatrix raw = random_matrix(random, info.codec, 70, cols);
        const Packed whole(raw);
        const int64_t tile = tile_bytes(info.codec, cols);
        const int64_t row_bytes = raw_row_bytes(info.codec, cols);
        std::vector<uint8_t> turns(2 * whole.size(), 0xEE);
        for (const auto& [first, rows] : {std::pair{0, 32}, std::pair{32, 16}, std::pair{48, 22}})
            CHECK(!pack_rows(info.codec, raw.bytes.data() + first * row_bytes, rows, cols,
                             turns.data() + first / 16 * 2 * tile, 2 * tile),
                  "%s", info.name.data());
        for (int64_t t = 0; t < tile_count(70); ++t) {
            CHECK(std::memcmp(turns.data() + 2 * t * tile, whole.data() + t * tile, static_cast<size_t>(tile)) == 0,
                  "%s tile %d", info.name.data(), static_cast<int>(t));
            for (int64_t i = 0; i < tile; ++i)
                CHECK(turns[static_cast<size_t>((2 * t + 1) * tile + i)] == 0xEE, "%s wrote between tiles",
                      info.name.data());
        }
    }
}

FREETOKEN_TEST(bad_scales_are_named) {
    Random random(8);
    struct Case {
        Codec codec;
        int offset;
        uint16_t bits;
        int bytes;
    };
    for (const Case& c :
         {Case{Codec::q4_0, 0, 0x7C00, 2}, Case{Codec::q4_0, 0, 0xFE01, 2}, Case{Codec::q8_0, 0, 0xFC00, 2},
          Case{Codec::q4_1, 0, 0x7C00, 2}, Case{Codec::q4_1, 2, 0x7E00, 2}, Case{Codec::mxfp4, 0, 0xFF, 1}}) {
        RawMatrix raw = random_matrix(random, c.codec, 40, 160);
        const int64_t block = codec_info(c.codec).raw_block_bytes;
        std::memcpy(raw.bytes.data() + 33 * raw_row_bytes(c.codec, 160) + 3 * block + c.offset, &c.bits,
                    static_cast<size_t>(c.bytes));
        std::vector<uint8_t> tiles(static_cast<size_t>(packed_bytes(c.codec, 40, 160)));
        const auto bad = pack_rows(c.codec, raw.bytes.data(), 40, 160, tiles.data(), tile_bytes(c.codec, 160));
        CHECK(bad.has_value(), "%s passed", codec_info(c.codec).name.data());
        if (bad)
            CHECK(bad->row == 33 && bad->block == 3, "row %d block %d", static_cast<int>(bad->row),
                  static_cast<int>(bad->block));
    }
}

FREETOKEN_TEST(sizes_add_up) {
    CHECK(tile_bytes(Codec::q4_0, 1024) == 16 * (64 + 512), "q4_0 %d", static_cast<int>(tile_bytes(Codec::q4_0, 1024)));
    CHECK(tile_bytes(Codec::mxfp4, 160) == 64 + 4 * 256 + 64 + 256, "the last group keeps a whole line of scales");
    CHECK(tile_bytes(Codec::bf16, 5) == 8 * 32, "columns are padded to four");
    CHECK(raw_row_bytes(Codec::mxfp4, 64) == 34 && raw_row_bytes(Codec::q4_1, 64) == 40, "ggml's blocks");
    CHECK(!valid_cols(Codec::q4_0, 48) && valid_cols(Codec::f32, 48) && !valid_cols(Codec::f32, 0),
          "whole blocks only");
    for (const CodecInfo& info : kCodecs) CHECK(codec_by_name(info.name) == info.codec, "%s", info.name.data());
    CHECK(!codec_by_name("q4_2"), "an unknown name");
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    const freetoken::FloatMode mode;
    return freetoken::test::run_tests(argc, argv);
}
