// Packing, rounding and unpacking of rows, and the angles of rope.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/describe.h"
#include "core/codec_names.h"
#include "core/encode.h"
#include "core/float_mode.h"
#include "core/pack.h"
#include "exec/rope_angles.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

[[noreturn]] void refuse(const BadValue& bad) {
    const std::string block = bad.block < 0 ? "" : ", block " + std::to_string(bad.block);
    throw ProgramError("row " + std::to_string(bad.row) + block + " has " + bad.what);
}

// Packs raw rows; tile i starts at byte i * stride of `out`.
void pack(const std::string& form_name, nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> raw,
          int64_t cols, WritableBytes out, int64_t stride) {
    const Form form = form_named(form_name);
    const Codec codec = form_info(form).codec;
    const auto rows = static_cast<int64_t>(raw.shape(0));
    if (!valid_cols(codec, cols) || static_cast<int64_t>(raw.shape(1)) != raw_row_bytes(form, cols))
        throw ProgramError("rows of " + std::to_string(raw.shape(1)) + " bytes do not hold " + std::to_string(cols) +
                           " values of " + form_name);
    const int64_t tile = tile_bytes(codec, cols);
    const int64_t needed = rows == 0 ? 0 : (tile_count(rows) - 1) * stride + tile;
    if (stride < tile || stride % tile != 0 || static_cast<int64_t>(out.size()) < needed)
        throw ProgramError("the tiles do not fit the output");
    std::optional<BadValue> bad;
    {
        const nb::gil_scoped_release unlocked;
        const FloatMode mode;
        bad = pack_rows(form, raw.data(), rows, cols, out.data(), stride);
    }
    if (bad) refuse(*bad);
}

NumpyRows unpack(const std::string& codec_name, int rows, int cols, Bytes packed) {
    const PackedMatrix matrix = packed_matrix(codec_name, rows, cols, packed);
    auto [values, data] = new_rows(static_cast<size_t>(rows), static_cast<size_t>(cols));
    const nb::gil_scoped_release unlocked;
    const FloatMode mode;
    for (int64_t row = 0; row < rows; ++row) unpack_row(matrix.codec, packed.data(), row, cols, data + row * cols);
    return values;
}

void angles(Floats inv_freq, float scale, std::tuple<float, int, int> growing, Ints positions, WritableRows cosine,
            WritableRows sine) {
    for (const WritableRows& out : {cosine, sine}) {
        if (out.shape(0) != positions.size() || out.shape(1) != inv_freq.size())
            throw ProgramError("cosine and sine have a row a position and a column a frequency");
    }
    const Growth growth = {std::get<0>(growing), std::get<1>(growing), std::get<2>(growing)};
    if (growth.every < 1) throw ProgramError("growth has steps of at least one position");
    const nb::gil_scoped_release unlocked;
    const FloatMode mode;
    for (size_t row = 0; row < positions.size(); ++row)
        rope_angles({inv_freq.data(), inv_freq.size()}, scale * growth.at(positions.data()[row]), positions.data()[row],
                    cosine.data() + row * inv_freq.size(), sine.data() + row * inv_freq.size());
}

// Values [rows][cols] as raw rows of a form.
NumpyArray<uint8_t, 2> encode(const std::string& form_name, FloatRows values) {
    const Form form = form_named(form_name);
    const auto rows = static_cast<int64_t>(values.shape(0));
    const auto cols = static_cast<int64_t>(values.shape(1));
    if (!can_encode(form)) throw ProgramError("values cannot be rounded to " + form_name + " here");
    if (!valid_cols(form_info(form).codec, cols))
        throw ProgramError(std::to_string(cols) + " values are no row of " + form_name);
    auto [raw, data] = new_array<uint8_t, 2>({values.shape(0), static_cast<size_t>(raw_row_bytes(form, cols))});
    std::optional<BadValue> bad;
    {
        const nb::gil_scoped_release unlocked;
        const FloatMode mode;
        bad = encode_rows(form, values.data(), rows, cols, data);
    }
    if (bad) refuse(*bad);
    return raw;
}

std::vector<std::string> codec_names() {
    std::vector<std::string> names;
    for (const CodecInfo& info : kCodecs) names.emplace_back(codec_name(info.codec));
    return names;
}

}  // namespace

void bind_codecs(nb::module_& m) {
    m.def("codecs", &codec_names);
    m.def(
        "packed_bytes",
        [](const std::string& codec, int64_t rows, int64_t cols) {
            return packed_bytes(codec_named(codec), rows, cols);
        },
        "codec"_a, "rows"_a, "cols"_a);
    m.def("pack_rows", &pack, "form"_a, "raw"_a, "cols"_a, "out"_a, "stride"_a);
    m.def("encode_rows", &encode, "form"_a, "values"_a);
    m.def("unpack", &unpack, "codec"_a, "rows"_a, "cols"_a, "packed"_a);
    m.def("rope_angles", &angles, "inv_freq"_a, "scale"_a, "growth"_a, "positions"_a, "cosine"_a, "sine"_a);
}

}  // namespace freetoken
