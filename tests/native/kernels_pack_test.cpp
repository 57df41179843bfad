// Packing: tiles against the layout written out here, round trips, and values that must be refused.
#include "core/codec_names.h"
#include "core/float_mode.h"
#include "core/pack.h"
#include "kernels_fixture.h"

namespace freetoken::test {
namespace {

// A tile under construction: the layout of docs/numerics.md, byte by byte.
class Tile {
public:
    Tile(const RawMatrix& m, int first_row, uint8_t* out)
        : m_(m), info_(codec_info(m.codec())), first_row_(first_row), out_(out) {
        switch (info_.kind) {
            case CodecKind::plain:
                lay_out_plain();
                return;
            case CodecKind::scaled:
                lay_out_scaled();
                return;
            case CodecKind::integer:
                lay_out_integer();
                return;
        }
    }

private:
    bool exists(int r) const { return first_row_ + r < m_.rows; }
    int row(int r) const { return first_row_ + r; }
    const uint8_t* raw_block(int r, int k) const { return m_.block(row(r), k); }

    void lay_out_plain() {
        const int size = info_.code_bytes;
        for (int r = 0; r < 16 && exists(r); ++r)
            for (int k = 0; k < m_.cols; ++k) std::memcpy(out_ + (k * 16 + r) * size, raw_block(r, k), size_t(size));
    }

    void lay_out_scaled() {
        const int group = info_.block * info_.group_blocks;
        for (int r = 0; r < 16 && exists(r); ++r)
            for (int k = 0; k < m_.cols; ++k) {
                uint8_t* header = out_ + k / group * (64 + group * 16);
                const int i = k % group;
                if (m_.form == Form::fp8) std::memcpy(header + 4 * r, raw_block(r, k), 4);
                if (m_.form == Form::mxfp8) header[i / 32 * 16 + r] = raw_block(r, k)[0];
                // Of each run of four columns: words of columns 0 and 2 of sixteen rows, then of 1 and 3.
                header[64 + i / 4 * 64 + i % 2 * 32 + 2 * r + i % 4 / 2] = uint8_t(raw_code(m_, row(r), k));
            }
    }

    void lay_out_integer() {
        if (info_.row_line)
            for (int r = 0; r < 16 && exists(r); ++r) {
                const float factor = load<float>(m_.row(row(r))) * (m_.form == Form::nvfp4 ? 128.0f : 1.0f);
                store(out_ + 4 * r, factor);
            }
        const int header_bytes = 64 * info_.header_lines;
        const int lines = 16 * info_.code_bytes;
        for (int b = 0; b < m_.cols / 32; ++b) {
            const int place = b % info_.group_blocks;
            uint8_t* header =
                out_ + (info_.row_line ? 64 : 0) + b / info_.group_blocks * (header_bytes + info_.group_blocks * lines);
            for (int r = 0; r < 16; ++r) {
                if (exists(r)) put_scales(header, place, r, b);
                for (int k = 0; k < 32; ++k)
                    put_code(header + header_bytes + place * lines, r, k,
                             exists(r) ? raw_code(m_, row(r), 32 * b + k) : code_of_zero());
            }
        }
    }

    int code_of_zero() const {
        const Codec codec = m_.codec();
        const bool by_table = codec == Codec::iq4_nl || codec == Codec::iq4_xs;
        return by_table || codec == Codec::mxfp4 || codec == Codec::nvfp4 ? 0 : info_.zero;
    }

    void put_scales(uint8_t* header, int place, int r, int b) {
        const uint8_t* raw = raw_block(r, 32 * b);
        switch (m_.codec()) {
            case Codec::q8_0:
            case Codec::q4_0:
            case Codec::q5_0:
            case Codec::iq4_nl:
            case Codec::nvfp4:
            case Codec::int4_32:
                std::memcpy(header + (16 * place + r) * 2, raw, 2);
                return;
            case Codec::q4_1:
            case Codec::q5_1:
            case Codec::int4_32z:
                std::memcpy(header + 4 * r, raw, 4);
                return;
            case Codec::mxfp4:
                header[16 * place + r] = raw[0];
                return;
            case Codec::iq4_xs:
                std::memcpy(header + 4 * r, raw, 2);
                header[64 + 16 * place + r] = uint8_t(scale_in_two(raw + 2, place));
                return;
            case Codec::int4_128z:
                std::memcpy(header + 2 * r, raw, 2);
                header[32 + r] = raw[2];
                return;
            case Codec::q2_k:
                std::memcpy(header + 4 * r, raw + 80, 4);
                std::memcpy(header + 64 + (16 * place + r) * 2, raw + 2 * place, 2);
                return;
            case Codec::q3_k:
                std::memcpy(header + 4 * r, raw + 108, 2);
                for (int half = 0; half < 2; ++half)
                    header[64 + (16 * place + r) * 2 + half] = uint8_t(signed_six_bits(raw + 96, 2 * place + half));
                return;
            case Codec::q4_k:
            case Codec::q5_k: {
                const Weight six = six_bits(raw + 4, place);
                std::memcpy(header + 4 * r, raw, 4);
                header[64 + (16 * place + r) * 2] = uint8_t(six.scale);
                header[64 + (16 * place + r) * 2 + 1] = uint8_t(six.minimum);
                return;
            }
            case Codec::q6_k:
                std::memcpy(header + 4 * r, raw + 208, 2);
                std::memcpy(header + 64 + (16 * place + r) * 2, raw + 192 + 2 * place, 2);
                return;
            default:
                fail(__FILE__, __LINE__, "a codec without a layout here");
        }
    }

    void put_code(uint8_t* lines, int r, int k, int code) {
        if (m_.codec() == Codec::q8_0) {
            lines[k / 4 * 64 + r * 4 + k % 4] = uint8_t(code);
            return;
        }
        const int j = k / 8;
        const int p = k % 8 / 4;
        const int i = k % 4;
        if (m_.codec() == Codec::q2_k) {
            lines[j / 2 * 64 + r * 4 + i] |= uint8_t(code << 2 * (2 * (j % 2) + p));
            return;
        }
        if (m_.codec() == Codec::q3_k) {
            const int bits = code << 3 * p;
            if (j < 3) lines[j * 64 + r * 4 + i] |= uint8_t(bits);
            if (j == 3)
                for (int line = 0; line < 3; ++line)
                    lines[line * 64 + r * 4 + i] |= uint8_t((bits >> 2 * line & 3) << 6);
            return;
        }
        lines[j * 64 + r * 4 + i] |= uint8_t((code & 15) << 4 * p);
        if (m_.codec() == Codec::q5_0 || m_.codec() == Codec::q5_1 || m_.codec() == Codec::q5_k)
            lines[4 * 64 + r * 4 + i] |= uint8_t((code >> 4) << (2 * j + p));
        if (m_.codec() == Codec::q6_k)
            lines[(4 + j / 2) * 64 + r * 4 + i] |= uint8_t((code >> 4) << 2 * (2 * (j % 2) + p));
    }

    const RawMatrix& m_;
    const CodecInfo& info_;
    const int first_row_;
    uint8_t* const out_;
};

std::vector<uint8_t> lay_out(const RawMatrix& m) {
    std::vector<uint8_t> tiles(static_cast<size_t>(packed_bytes(m.codec(), m.rows, m.cols)), 0);
    for (int row = 0; row < m.rows; row += 16) Tile(m, row, tiles.data() + row / 16 * tile_bytes(m.codec(), m.cols));
    return tiles;
}

int random_cols(Random& random, Form form) {
    const CodecInfo& info = codec_info(form_info(form).codec);
    if (info.cols_unit == 256) return 256 * random.between(1, 3);
    return info.cols_unit == 1 ? random.pick({1, 2, 3, 5, 31, 32, 77, 100, 128, 129, 132, 260})
                               : info.cols_unit * random.between(1, 9);
}

}  // namespace

FREETOKEN_TEST(tiles_have_the_documented_layout) {
    Random random(3);
    for (const FormInfo& info : kForms)
        for (int i = 0; i < 30; ++i) {
            const RawMatrix raw =
                random_matrix(random, info.form, random.between(1, 50), random_cols(random, info.form),
                              random.pick({Scales::ordinary, Scales::any}));
            const Packed packed(raw);
            const auto expected = lay_out(raw);
            CHECK(packed.size() == expected.size() && std::memcmp(packed.data(), expected.data(), expected.size()) == 0,
                  "%s rows %d cols %d", form_name(info.form).data(), raw.rows, raw.cols);
        }
}

FREETOKEN_TEST(unpacked_rows_are_the_raw_weights) {
    Random random(4);
    for (const FormInfo& info : kForms)
        for (int i = 0; i < 30; ++i) {
            const int cols = random_cols(random, info.form);
            const RawMatrix raw =
                random_matrix(random, info.form, random.between(1, 40), cols,
                              random.pick({Scales::ordinary, Scales::any, Scales::tiny, Scales::huge, Scales::zero}));
            const Packed packed(raw);
            std::vector<float> out(static_cast<size_t>(cols) + 1, 7.0f);
            for (int row = 0; row < raw.rows; ++row) {
                unpack_row(info.codec, packed.data(), row, cols, out.data());
                for (int k = 0; k < cols; ++k) {
                    const float expected = static_cast<float>(raw_value(raw, row, k));
                    CHECK(out[static_cast<size_t>(k)] == expected, "%s row %d k %d: %a, not %a",
                          form_name(info.form).data(), row, k, static_cast<double>(out[static_cast<size_t>(k)]),
                          static_cast<double>(expected));
                }
                CHECK(out[static_cast<size_t>(cols)] == 7.0f, "%s wrote beyond the row", form_name(info.form).data());
            }
        }
}

FREETOKEN_TEST(rows_packed_in_ranges_and_in_turn_are_the_same) {
    Random random(6);
    for (const FormInfo& info : kForms) {
        const int cols = codec_info(info.codec).cols_unit == 256 ? 512 : info.block == 1 ? 37 : 160;
        const RawMatrix raw = random_matrix(random, info.form, 70, cols);
        const Packed whole(raw);
        const int64_t tile = tile_bytes(info.codec, cols);
        std::vector<uint8_t> turns(2 * whole.size(), 0xEE);
        for (const auto& [first, rows] : {std::pair{0, 32}, std::pair{32, 16}, std::pair{48, 22}})
            CHECK(!pack_rows(info.form, raw.row(first), rows, cols, turns.data() + first / 16 * 2 * tile, 2 * tile),
                  "%s", form_name(info.form).data());
        for (int64_t t = 0; t < tile_count(70); ++t) {
            CHECK(std::memcmp(turns.data() + 2 * t * tile, whole.data() + t * tile, static_cast<size_t>(tile)) == 0,
                  "%s tile %d", form_name(info.form).data(), static_cast<int>(t));
            for (int64_t i = 0; i < tile; ++i)
                CHECK(turns[static_cast<size_t>((2 * t + 1) * tile + i)] == 0xEE, "%s wrote between tiles",
                      form_name(info.form).data());
        }
    }
}

FREETOKEN_TEST(bad_values_are_named) {
    Random random(8);
    struct Case {
        Form form;
        int offset;  // into the raw block
        uint16_t bits;
        int bytes;
        const char* what;
    };
    const char* scale = "a scale that is no finite number";
    const char* zero = "a zero point above 16";
    const char* weight = "a weight that is no number";
    const Case cases[] = {
        {Form::q4_0, 0, 0x7C00, 2, scale},      {Form::q4_0, 0, 0xFE01, 2, scale},
        {Form::q8_0, 0, 0xFC00, 2, scale},      {Form::q4_1, 0, 0x7C00, 2, scale},
        {Form::q4_1, 2, 0x7E00, 2, scale},      {Form::mxfp4, 0, 0xFF, 1, scale},
        {Form::mxfp4_pairs, 0, 0xFF, 1, scale}, {Form::iq4_nl, 0, 0x7C00, 2, scale},
        {Form::q5_0, 0, 0xFC00, 2, scale},      {Form::iq4_xs, 0, 0x7E00, 2, scale},
        {Form::q5_1, 0, 0x7C00, 2, scale},      {Form::q5_1, 2, 0xFE00, 2, scale},
        {Form::q2_k, 80, 0x7C00, 2, scale},     {Form::q2_k, 82, 0xFC00, 2, scale},
        {Form::q3_k, 108, 0x7E00, 2, scale},    {Form::q4_k, 0, 0xFC00, 2, scale},
        {Form::q4_k, 2, 0x7C00, 2, scale},      {Form::q5_k, 0, 0x7D00, 2, scale},
        {Form::q5_k, 2, 0xFC00, 2, scale},      {Form::q6_k, 208, 0x7C00, 2, scale},
        {Form::nvfp4, 0, 0x7F, 1, scale},       {Form::nvfp4, 1, 0xFF, 1, scale},
        {Form::int4_32, 0, 0x7C00, 2, scale},   {Form::int4_32z, 0, 0x7C00, 2, scale},
        {Form::int4_32z, 2, 17, 2, zero},       {Form::int4_32z, 2, 0x100, 2, zero},
        {Form::int4_128z, 0, 0xFC00, 2, scale}, {Form::int4_128z, 2, 17, 2, zero},
        {Form::fp8, 2, 0x7F80, 2, scale},       {Form::fp8, 2, 0xFFC0, 2, scale},
        {Form::fp8, 4, 0x7F, 1, weight},        {Form::fp8, 4 + 69, 0xFF, 1, weight},
        {Form::mxfp8, 0, 0xFF, 1, scale},       {Form::mxfp8, 32, 0x7F, 1, weight},
    };
    for (const Case& c : cases) {
        const FormInfo& info = form_info(c.form);
        const int cols = info.block * 5;
        RawMatrix raw = random_matrix(random, c.form, 40, cols);
        std::memcpy(raw.block(33, 3 * info.block) + c.offset, &c.bits, static_cast<size_t>(c.bytes));
        std::vector<uint8_t> tiles(static_cast<size_t>(packed_bytes(info.codec, 40, cols)));
        const auto bad = pack_rows(c.form, raw.bytes.data(), 40, cols, tiles.data(), tile_bytes(info.codec, cols));
        CHECK(bad.has_value(), "%s passed with %x at %d", form_name(info.form).data(), c.bits, c.offset);
        if (!bad) continue;
        CHECK(bad->row == 33 && bad->block == 3, "%s: row %d block %d", form_name(info.form).data(),
              static_cast<int>(bad->row), static_cast<int>(bad->block));
        CHECK(std::string(bad->what) == c.what, "%s: %s", form_name(info.form).data(), bad->what);
    }
}

FREETOKEN_TEST(bad_row_factors_are_named) {
    Random random(18);
    for (const FormInfo& info : kForms) {
        if (info.row_header == 0) continue;
        for (const float factor : {INFINITY, -INFINITY, NAN, 3e38f}) {
            if (factor == 3e38f && info.form != Form::nvfp4) continue;  // nvfp4 keeps it times 2^7
            RawMatrix raw = random_matrix(random, info.form, 40, 160);
            store(raw.row(21), factor);
            std::vector<uint8_t> tiles(static_cast<size_t>(packed_bytes(info.codec, 40, 160)));
            const auto bad = pack_rows(info.form, raw.bytes.data(), 40, 160, tiles.data(), tile_bytes(info.codec, 160));
            CHECK(bad && bad->row == 21 && bad->block == -1, "%s passed with %g", form_name(info.form).data(),
                  static_cast<double>(factor));
        }
    }
}

FREETOKEN_TEST(weights_that_are_no_numbers_are_found_in_every_column) {
    Random random(28);
    for (const int cols : {1, 7, 8, 9, 127, 128, 131})
        for (int k = 0; k < cols; ++k) {
            RawMatrix raw = random_matrix(random, Form::fp8, 1, cols);
            raw.block(0, k)[4 + k % 128] = k % 2 == 0 ? 0x7F : 0xFF;
            std::vector<uint8_t> tile(static_cast<size_t>(tile_bytes(Codec::fp8, cols)));
            const auto bad = pack_rows(Form::fp8, raw.bytes.data(), 1, cols, tile.data(), tile_bytes(Codec::fp8, cols));
            CHECK(bad && bad->block == k / 128, "column %d of %d passed", k, cols);
        }
}

FREETOKEN_TEST(sizes_add_up) {
    CHECK(tile_bytes(Codec::q4_0, 1024) == 16 * (64 + 512), "q4_0 %d", static_cast<int>(tile_bytes(Codec::q4_0, 1024)));
    CHECK(tile_bytes(Codec::mxfp4, 160) == 64 + 4 * 256 + 64 + 256, "the last group keeps a whole line of scales");
    CHECK(tile_bytes(Codec::q5_0, 96) == 2 * 64 + 3 * 320, "q5_0");
    CHECK(tile_bytes(Codec::q5_1, 96) == 3 * (64 + 320), "q5_1");
    CHECK(tile_bytes(Codec::iq4_xs, 512) == 2 * (3 * 64 + 8 * 256), "iq4_xs");
    CHECK(tile_bytes(Codec::q2_k, 512) == 2 * (5 * 64 + 8 * 128), "q2_k");
    CHECK(tile_bytes(Codec::q3_k, 512) == 2 * (5 * 64 + 8 * 192), "q3_k");
    CHECK(tile_bytes(Codec::q4_k, 512) == 2 * (5 * 64 + 8 * 256), "q4_k");
    CHECK(tile_bytes(Codec::q5_k, 512) == 2 * (5 * 64 + 8 * 320), "q5_k");
    CHECK(tile_bytes(Codec::q6_k, 512) == 2 * (5 * 64 + 8 * 384), "q6_k");
    CHECK(tile_bytes(Codec::nvfp4, 96) == 64 + 2 * 64 + 3 * 256, "a line of row factors comes first");
    CHECK(tile_bytes(Codec::int4_32z, 96) == 64 + 3 * (64 + 256), "int4_32z");
    CHECK(tile_bytes(Codec::int4_128z, 160) == 64 + 2 * 64 + 5 * 256, "int4_128z");
    CHECK(tile_bytes(Codec::fp8, 129) == 64 + 128 * 16 + 64 + 4 * 16, "the last block is short");
    CHECK(tile_bytes(Codec::mxfp8, 160) == 64 + 128 * 16 + 64 + 32 * 16, "mxfp8");
    CHECK(tile_bytes(Codec::bf16, 5) == 8 * 32, "columns are padded to four");
    CHECK(raw_row_bytes(Form::mxfp4, 64) == 34 && raw_row_bytes(Form::q4_1, 64) == 40, "ggml's blocks");
    CHECK(raw_row_bytes(Form::q4_k, 512) == 288 && raw_row_bytes(Form::q5_k, 256) == 176, "ggml's blocks of 256");
    CHECK(raw_row_bytes(Form::q6_k, 256) == 210, "ggml's q6_k");
    CHECK(raw_row_bytes(Form::q2_k, 256) == 84 && raw_row_bytes(Form::q3_k, 256) == 110, "ggml's q2_k and q3_k");
    CHECK(raw_row_bytes(Form::q5_0, 64) == 44 && raw_row_bytes(Form::q5_1, 64) == 48, "ggml's q5_0 and q5_1");
    CHECK(raw_row_bytes(Form::iq4_xs, 256) == 136, "ggml's iq4_xs");
    CHECK(raw_row_bytes(Form::fp8, 130) == 4 + 128 + 4 + 2, "the last block is short");
    CHECK(raw_row_bytes(Form::int4_128z, 160) == 4 + 4 + 64 + 4 + 16, "the last block is short");
    CHECK(!valid_cols(Codec::q4_0, 48) && valid_cols(Codec::f32, 48) && !valid_cols(Codec::f32, 0),
          "whole blocks only");
    CHECK(!valid_cols(Codec::q4_k, 128) && valid_cols(Codec::int4_128z, 160) && valid_cols(Codec::fp8, 3), "units");
    for (const CodecInfo& info : kCodecs)
        CHECK(codec_by_name(codec_name(info.codec)) == info.codec, "%s", codec_name(info.codec).data());
    for (const FormInfo& info : kForms)
        CHECK(form_by_name(form_name(info.form)) == info.form, "%s", form_name(info.form).data());
    CHECK(form_name(Form::mxfp8) == "mxfp8" && codec_name(Codec::nvfp4) == "nvfp4", "names in order");
    CHECK(!codec_by_name("q4_2") && !codec_by_name("mxfp4_pairs") && !form_by_name("q4_2"), "an unknown name");
}

FREETOKEN_TEST(every_e4m3_code_has_its_value) {
    for (int code = 0; code < 256; ++code) {
        if ((code & 0x7F) == 0x7F) continue;
        const float expected = e4m3_value(static_cast<uint8_t>(code)) / 256.0f;
        CHECK(same_bits(e4m3_over_256(static_cast<uint8_t>(code)), expected), "code %d", code);
    }
}

}  // namespace freetoken::test

int main(int argc, char** argv) {
    const freetoken::FloatMode mode;
    return freetoken::test::run_tests(argc, argv);
}
