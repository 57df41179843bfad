#include <limits>

#include "exec/builder.h"

namespace freetoken {

void OpReader::fail(const std::string& why) const {
    std::string where = "operation " + std::to_string(index_) + " (" + spec_.kind;
    if (spec_.layer >= 0) where += ", layer " + std::to_string(spec_.layer);
    throw ProgramError(where + "): " + why);
}

void OpReader::arity(size_t reads, size_t writes, size_t weights, size_t optional_reads) const {
    const bool fits = spec_.reads.size() >= reads && spec_.reads.size() <= reads + optional_reads &&
                      spec_.writes.size() == writes && spec_.weights.size() == weights;
    require(fits, "takes " + std::to_string(reads) + " inputs, " + std::to_string(writes) + " outputs and " +
                      std::to_string(weights) + " weights, not " + std::to_string(spec_.reads.size()) + ", " +
                      std::to_string(spec_.writes.size()) + " and " + std::to_string(spec_.weights.size()));
}

const Buffer& OpReader::find(const std::string& name) const {
    try {
        return builder.buffer(name);
    } catch (const ProgramError& error) {
        fail(error.what());
    }
}

const WeightSpec& OpReader::find_weight(const std::string& name) const {
    try {
        return builder.weight(name);
    } catch (const ProgramError& error) {
        fail(error.what());
    }
}

const int32_t* OpReader::order(const std::string& matrix) const {
    try {
        return builder.order(matrix);
    } catch (const ProgramError& error) {
        fail(error.what());
    }
}

const Buffer& OpReader::read(size_t i) const {
    require(i < spec_.reads.size(), "too few inputs");
    return find(spec_.reads[i]);
}

const Buffer& OpReader::write(size_t i) const {
    require(i < spec_.writes.size(), "too few outputs");
    return find(spec_.writes[i]);
}

OrderedMatrix OpReader::ordered_matrix(size_t i) const {
    require(i < spec_.weights.size(), "too few weights");
    const std::string& name = spec_.weights[i];
    const WeightSpec& weight = find_weight(name);
    require(!weight.vector, "the weight " + name + " is a vector");
    require(weight.rows > 0 && valid_cols(weight.codec, weight.cols), "the weight " + name + " has no valid shape");
    require(static_cast<int64_t>(weight.bytes) >= packed_bytes(weight.codec, weight.rows, weight.cols),
            "the weight " + name + " is short");
    return {{weight.codec, weight.rows, weight.cols, weight.data}, order(name)};
}

PackedMatrix OpReader::matrix(size_t i) const {
    const OrderedMatrix ordered = ordered_matrix(i);
    require(ordered.order == nullptr, "the columns of the weight " + spec_.weights[i] + " are in another order");
    return ordered.matrix;
}

int OpReader::vector_length(size_t i) const {
    require(i < spec_.weights.size(), "too few weights");
    return find_weight(spec_.weights[i]).cols;
}

const float* OpReader::vector(size_t i, int length) const {
    require(i < spec_.weights.size(), "too few weights");
    const std::string& name = spec_.weights[i];
    const WeightSpec& weight = find_weight(name);
    require(weight.vector && weight.codec == Codec::f32, "the weight " + name + " is no vector");
    require(weight.cols == length, "the weight " + name + " has " + std::to_string(weight.cols) +
                                       " values instead of " + std::to_string(length));
    require(weight.bytes >= static_cast<size_t>(length) * sizeof(float), "the weight " + name + " is short");
    return reinterpret_cast<const float*>(weight.data);
}

const float* OpReader::optional_vector(size_t i, int length) const {
    require(i < spec_.weights.size(), "too few weights");
    return spec_.weights[i].empty() ? nullptr : vector(i, length);
}

const Attribute& OpReader::attribute(const std::string& name) const {
    const auto found = spec_.attributes.find(name);
    require(found != spec_.attributes.end(), "the attribute " + name + " is missing");
    return found->second;
}

int OpReader::integer(const std::string& name) const {
    const auto* value = std::get_if<int64_t>(&attribute(name));
    const bool fits = value != nullptr && *value >= 0 && *value <= std::numeric_limits<int>::max();
    require(fits, "the attribute " + name + " must be a count");
    return static_cast<int>(*value);
}

float OpReader::real(const std::string& name) const {
    const Attribute& value = attribute(name);
    if (const auto* number = std::get_if<double>(&value)) return static_cast<float>(*number);
    if (const auto* count = std::get_if<int64_t>(&value)) return static_cast<float>(*count);
    fail("the attribute " + name + " must be a number");
}

bool OpReader::flag(const std::string& name) const {
    const auto* value = std::get_if<bool>(&attribute(name));
    require(value != nullptr, "the attribute " + name + " must be true or false");
    return *value;
}

std::string OpReader::text(const std::string& name) const {
    const auto* value = std::get_if<std::string>(&attribute(name));
    require(value != nullptr, "the attribute " + name + " must be a word");
    return *value;
}

Glu OpReader::glu() const {
    const std::string name = text("activation");
    const std::optional<Glu> glu = glu_named(name, real("alpha"), real("limit"));
    require(glu.has_value(), "the activation " + name + " is unknown");
    return *glu;
}

void OpReader::width(const Buffer& buffer, int64_t wanted) const {
    require(buffer.width == wanted, "buffer " + buffer.name + " has " + std::to_string(buffer.width) +
                                        " columns instead of " + std::to_string(wanted));
}

}  // namespace freetoken
