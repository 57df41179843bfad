#include "bindings/describe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/codec_names.h"
#include "core/pack.h"

namespace nb = nanobind;

namespace freetoken {
namespace {

template <class T>
T get(nb::handle object, const char* name) {
    return nb::cast<T>(object.attr(name));
}

Attribute attribute(nb::handle value) {
    if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
    if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
    if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
    return nb::cast<std::string>(value);
}

OpSpec op_spec(nb::handle op) {
    OpSpec spec;
    spec.kind = get<std::string>(op, "kind");
    for (nb::handle name : op.attr("reads")) spec.reads.push_back(nb::cast<std::string>(name));
    for (nb::handle name : op.attr("writes")) spec.writes.push_back(nb::cast<std::string>(name));
    for (nb::handle name : op.attr("weights")) spec.weights.push_back(nb::cast<std::string>(name));
    for (nb::handle item : op.attr("attrs").attr("items")())
        spec.attributes.emplace(nb::cast<std::string>(item[0]), attribute(item[1]));
    spec.layer = get<int>(op, "layer");
    return spec;
}

BufferSpec buffer_spec(const std::string& name, nb::handle buffer) {
    BufferSpec spec;
    spec.name = name;
    spec.width = get<int>(buffer, "width");
    const std::string domain = get<std::string>(buffer, "domain");
    const std::string dtype = get<std::string>(buffer, "dtype");
    if (domain != "token" && domain != "row") throw ProgramError("buffer " + name + " is of the domain " + domain);
    if (dtype != "f32" && dtype != "i32") throw ProgramError("buffer " + name + " holds " + dtype);
    spec.per_row = domain == "row";
    spec.integers = dtype == "i32";
    spec.base = get<std::string>(buffer, "base");
    spec.offset = get<int>(buffer, "offset");
    return spec;
}

}  // namespace

Codec codec_named(const std::string& name) {
    if (const auto codec = codec_by_name(name)) return *codec;
    throw ProgramError("the codec " + name + " is unknown");
}

Form form_named(const std::string& name) {
    if (const auto form = form_by_name(name)) return *form;
    throw ProgramError("the form " + name + " is unknown");
}

PackedMatrix packed_matrix(const std::string& codec, int rows, int cols, const Bytes& packed) {
    if (rows <= 0 || cols <= 0) throw ProgramError("an empty matrix");
    const PackedMatrix matrix = {codec_named(codec), rows, cols, packed.data()};
    const auto wanted = static_cast<size_t>(packed_bytes(matrix.codec, rows, cols));
    if (packed.size() != wanted)
        throw ProgramError("a packed matrix of " + std::to_string(packed.size()) + " bytes instead of " +
                           std::to_string(wanted));
    return matrix;
}

ProgramSpec program_spec(nb::handle program) {
    ProgramSpec spec;
    for (nb::handle item : program.attr("buffers").attr("items")())
        spec.buffers.push_back(buffer_spec(nb::cast<std::string>(item[0]), item[1]));
    for (nb::handle op : program.attr("ops")) spec.ops.push_back(op_spec(op));
    for (nb::handle cache : program.attr("caches"))
        spec.caches.push_back({get<int>(cache, "kv_heads"), get<int>(cache, "k_dim"), get<int>(cache, "v_dim"),
                               get<int>(cache, "reach"), get<int>(cache, "every")});
    for (nb::handle state : program.attr("states")) spec.states.push_back({get<int>(state, "values")});
    for (nb::handle rope : program.attr("ropes"))
        spec.ropes.push_back(
            {nb::cast<std::vector<float>>(nb::list(rope.attr("inv_freq"))), get<float>(rope, "scale"),
             {get<float>(rope, "growth"), get<int>(rope, "growth_every"), get<int>(rope, "growth_ahead")},
             get<int>(rope, "every")});
    spec.output = get<std::string>(program, "output");
    return spec;
}

WeightSpec weight_spec(nb::handle tensor, Lender& lender) {
    WeightSpec spec;
    spec.codec = codec_named(get<std::string>(tensor, "codec"));
    spec.rows = get<int>(tensor, "rows");
    spec.cols = get<int>(tensor, "cols");
    spec.vector = get<bool>(tensor, "vector");
    const Bytes data = lender.borrow(tensor.attr("data"));
    spec.data = data.data();
    spec.bytes = data.size();
    return spec;
}

FieldSpec field_spec(nb::handle field) {
    const nb::object shape = field.attr("shape");
    FieldSpec spec;
    spec.name = get<std::string>(field, "name");
    spec.codec = codec_named(get<std::string>(shape, "codec"));
    spec.rows = get<int>(shape, "rows");
    spec.cols = get<int>(shape, "cols");
    spec.vector = get<bool>(shape, "vector");
    spec.offset = get<size_t>(field, "offset");
    return spec;
}

BankSpec bank_spec(nb::handle bank, Lender& lender) {
    BankSpec spec;
    for (nb::handle field : bank.attr("fields")) spec.fields.push_back(field_spec(field));
    spec.record_bytes = get<size_t>(bank, "record_bytes");
    spec.experts_per_layer = get<int>(bank, "experts_per_layer");
    for (nb::handle layer : bank.attr("layers")) spec.layers.push_back(nb::cast<int>(layer));
    for (nb::handle shard : bank.attr("shards")) {
        const Bytes data = lender.borrow(shard);
        spec.shards.push_back({data.data(), data.size()});
    }
    spec.records_per_shard = get<size_t>(bank, "records_per_shard");
    return spec;
}

}  // namespace freetoken
