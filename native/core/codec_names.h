// Names of codecs and forms, and what is called by a name.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "core/codec.h"

namespace freetoken {

// By form. The first of them are the codecs' names: every codec has the form of its own name.
inline constexpr std::array<std::string_view, std::size(kForms)> kFormNames = {
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k",
    "q5_k", "q6_k", "nvfp4", "int4_32", "int4_32z", "int4_128z", "fp8", "mxfp8", "mxfp4_pairs",
};

static constexpr std::string_view form_name(Form form) {
    return kFormNames[static_cast<size_t>(form)];
}

static constexpr std::string_view codec_name(Codec codec) {
    return form_name(form_of(codec));
}

static constexpr std::optional<Form> form_by_name(std::string_view name) {
    for (const FormInfo& info : kForms)
        if (form_name(info.form) == name) return info.form;
    return std::nullopt;
}

static constexpr std::optional<Codec> codec_by_name(std::string_view name) {
    for (const CodecInfo& info : kCodecs)
        if (codec_name(info.codec) == name) return info.codec;
    return std::nullopt;
}

}  // namespace freetoken
