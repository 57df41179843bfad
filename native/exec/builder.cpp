#include "exec/builder.h"

#include <algorithm>
#include <numeric>

#include "exec/column_order.h"

namespace freetoken {
namespace {

// Rows start at multiples of 64 bytes.
size_t row_stride(int width) {
    return (static_cast<size_t>(width) + 15) / 16 * 16;
}

}  // namespace

Builder::Builder(const ModelSpec& model, const Settings& settings, const Machine& machine, ContextStore& context,
                 Storage& storage)
    : model_(model), settings_(settings), machine_(machine), context_(context), storage_(storage) {
    allocate_buffers();
    for (const BufferSpec& spec : model.program.buffers) {
        if (!spec.base.empty()) resolve_view(spec);
    }
    for (const RopeSpec& spec : model.program.ropes) {
        auto angles = std::make_unique<RopeAngles>();
        angles->inv_freq = spec.inv_freq;
        angles->scale = spec.scale;
        angles->growth = spec.growth;
        if (spec.every <= 0) throw ProgramError("a rope table cannot turn every " + std::to_string(spec.every));
        angles->every = spec.every;
        const size_t bytes = static_cast<size_t>(settings.max_tokens) * angles->pairs() * sizeof(float);
        angles->cosine = Mapping(bytes);
        angles->sine = Mapping(bytes);
        storage_.ropes.push_back(std::move(angles));
    }
    for (const BankSpec& bank : model.banks) storage_.records.add(bank);
}

void Builder::allocate_buffers() {
    for (const BufferSpec& spec : model_.program.buffers) {
        if (spec.width <= 0) throw ProgramError("buffer " + spec.name + " has no columns");
        if (!spec.base.empty()) continue;
        Buffer buffer;
        buffer.name = buffer.root = spec.name;
        buffer.width = spec.width;
        buffer.per_row = spec.per_row;
        buffer.integers = spec.integers;
        // The output is written straight into the caller's array.
        buffer.stride = spec.name == model_.program.output ? static_cast<size_t>(spec.width) : row_stride(spec.width);
        if (spec.name != model_.program.output) {
            storage_.memory.emplace_back(static_cast<size_t>(settings_.max_tokens) * buffer.stride * sizeof(float));
            buffer.data = storage_.memory.back().floats();
        }
        if (!storage_.buffers.emplace(spec.name, buffer).second)
            throw ProgramError("buffer " + spec.name + " is there twice");
    }
}

void Builder::resolve_view(const BufferSpec& spec) {
    const auto base = storage_.buffers.find(spec.base);
    if (base == storage_.buffers.end() || base->second.root != spec.base)
        throw ProgramError("buffer " + spec.name + " is a view of " + spec.base + ", which has no memory of its own");
    if (spec.base == model_.program.output) throw ProgramError("buffer " + spec.name + " is a view of the output");
    if (spec.offset < 0 || static_cast<int64_t>(spec.offset) + spec.width > base->second.width)
        throw ProgramError("buffer " + spec.name + " reaches beyond " + spec.base);
    Buffer view = base->second;
    if (view.per_row != spec.per_row || view.integers != spec.integers)
        throw ProgramError("buffer " + spec.name + " differs in kind from " + spec.base);
    view.name = spec.name;
    view.width = spec.width;
    view.offset = spec.offset;
    view.data += spec.offset;
    if (!storage_.buffers.emplace(spec.name, view).second)
        throw ProgramError("buffer " + spec.name + " is there twice");
}

const Buffer& Builder::buffer(const std::string& name) const {
    const auto found = storage_.buffers.find(name);
    if (found == storage_.buffers.end()) throw ProgramError("there is no buffer " + name);
    return found->second;
}

const WeightSpec& Builder::weight(const std::string& name) const {
    const auto found = model_.weights.find(name);
    if (found == model_.weights.end()) throw ProgramError("the weight " + name + " is missing");
    return found->second;
}

const RopeAngles& Builder::rope(int table) const {
    if (table < 0 || static_cast<size_t>(table) >= storage_.ropes.size())
        throw ProgramError("there is no rope table " + std::to_string(table));
    return *storage_.ropes[static_cast<size_t>(table)];
}

const std::vector<ExpertRecord>& Builder::experts(int layer) const {
    return storage_.records.of_layer(layer);
}

PackedRows& Builder::packed(const Buffer& buffer, ActivationForm form, bool& stale) {
    Storage::Twin& twin = storage_.twins[{buffer.root, buffer.offset, buffer.width, form}];
    if (twin.rows == nullptr) {
        twin.root = buffer.root;
        twin.rows = std::make_unique<PackedRows>(*machine_.kernels, form, buffer.width,
                                                 static_cast<size_t>(settings_.max_tokens));
    }
    stale = std::exchange(twin.stale, false);
    return *twin.rows;
}

PackedRows& Builder::ordered_rows(int cols, ActivationForm form, int number) {
    auto& rows = storage_.ordered_rows[{cols, form, number}];
    if (rows == nullptr)
        rows = std::make_unique<PackedRows>(*machine_.kernels, form, cols, static_cast<size_t>(settings_.max_tokens));
    return *rows;
}

const int32_t* Builder::order(const std::string& matrix) const {
    const auto found = model_.weights.find(matrix + ".order");
    if (found == model_.weights.end()) return nullptr;
    const auto& [name, spec] = *found;
    const auto cols = static_cast<size_t>(weight(matrix).cols);
    if (!spec.vector || spec.codec != Codec::f32 || static_cast<size_t>(spec.cols) != cols ||
        spec.bytes < cols * sizeof(float))
        throw ProgramError("the weight " + name + " must be a vector of " + std::to_string(cols) + " values");
    std::vector<int32_t> columns(cols), own(cols);
    read_columns(reinterpret_cast<const float*>(spec.data), spec.cols, columns.data());
    std::iota(own.begin(), own.end(), 0);
    if (!std::is_permutation(own.begin(), own.end(), columns.begin()))
        throw ProgramError("the weight " + name + " does not name every column once");
    return columns == own ? nullptr : storage_.orders.insert(std::move(columns)).first->data();
}

void Builder::written(const Buffer& buffer) {
    for (auto& [key, twin] : storage_.twins) {
        if (twin.root == buffer.root) twin.stale = true;
    }
}

}  // namespace freetoken
