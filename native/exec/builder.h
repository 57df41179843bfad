// Turns names into memory: what the operations are made from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/context_store.h"
#include "exec/operation.h"
#include "exec/program.h"
#include "exec/storage.h"

namespace freetoken {

class Builder {
public:
    // Fills `storage` with buffers, rope tables and layouts. All references must outlive the builder; the operations
    // it makes keep references to `storage` and `context`.
    Builder(const ModelSpec& model, const Settings& settings, const Machine& machine, ContextStore& context,
            Storage& storage);

    const Machine& machine() const { return machine_; }
    const Settings& settings() const { return settings_; }
    KvCache& cache() const { return context_.cache(); }
    StateStore& states() const { return context_.states(); }
    Storage& storage() const { return storage_; }

    // Each throws ProgramError, which names what is missing.
    const Buffer& buffer(const std::string& name) const;
    const WeightSpec& weight(const std::string& name) const;
    const RopeAngles& rope(int table) const;
    // Records of all experts of one MoE layer.
    const std::vector<ExpertRecord>& experts(int layer) const;

    // Packed rows of a buffer. `stale`: they must be packed before they are read.
    PackedRows& packed(const Buffer& buffer, ActivationForm form, bool& stale);
    // Rows of `cols` columns that an operation packs for itself, in the `number`th of its orders.
    PackedRows& ordered_rows(int cols, ActivationForm form, int number);
    // The order of the columns of a matrix: entry i is the column of the input that column i is multiplied by. Null
    // for a matrix in the order of its input; equal orders are one.
    const int32_t* order(const std::string& matrix) const;
    // Says that an operation writes the buffer.
    void written(const Buffer& buffer);

private:
    void allocate_buffers();
    void resolve_view(const BufferSpec& spec);

    const ModelSpec& model_;
    const Settings& settings_;
    const Machine& machine_;
    ContextStore& context_;
    Storage& storage_;
};

// A matrix, and the order of its columns where that is not the order of its input.
struct OrderedMatrix {
    PackedMatrix matrix;
    const int32_t* order;
};

// Reads one operation, with errors that name it.
class OpReader {
public:
    OpReader(Builder& builder, const OpSpec& spec, size_t index) : builder(builder), spec_(spec), index_(index) {}

    [[noreturn]] void fail(const std::string& why) const;
    void require(bool condition, const std::string& why) const {
        if (!condition) fail(why);
    }
    // Numbers of names that the operation takes; `optional_reads` more reads are allowed.
    void arity(size_t reads, size_t writes, size_t weights, size_t optional_reads = 0) const;

    size_t reads() const { return spec_.reads.size(); }
    size_t writes() const { return spec_.writes.size(); }
    size_t weights() const { return spec_.weights.size(); }
    const Buffer& read(size_t i) const;
    const Buffer& write(size_t i) const;
    bool has_read(size_t i) const { return i < spec_.reads.size() && !spec_.reads[i].empty(); }
    bool has_weight(size_t i) const { return i < spec_.weights.size() && !spec_.weights[i].empty(); }
    OrderedMatrix ordered_matrix(size_t i) const;
    // Of an operation that takes no other order than that of its input.
    PackedMatrix matrix(size_t i) const;
    // Values of a vector whose length says what it is.
    int vector_length(size_t i) const;
    const float* vector(size_t i, int length) const;
    const float* optional_vector(size_t i, int length) const;

    bool has_attribute(const std::string& name) const { return spec_.attributes.contains(name); }
    int integer(const std::string& name) const;
    float real(const std::string& name) const;
    bool flag(const std::string& name) const;
    std::string text(const std::string& name) const;
    Glu glu() const;
    const Operations& operations() const { return *builder.machine().operations; }
    const Kernels& kernels() const { return *builder.machine().kernels; }
    // Width of a buffer, checked.
    void width(const Buffer& buffer, int64_t wanted) const;

    Builder& builder;

private:
    const Attribute& attribute(const std::string& name) const;
    const Buffer& find(const std::string& name) const;
    const WeightSpec& find_weight(const std::string& name) const;
    const int32_t* order(const std::string& matrix) const;

    const OpSpec& spec_;
    const size_t index_;
};

// One operation, compiled. Throws ProgramError.
std::unique_ptr<Operation> make_operation(Builder& builder, const OpSpec& spec, size_t index);

// The rotation angles of a step; runs before everything else.
std::unique_ptr<Operation> make_angles(Builder& builder);

// Makers of the kinds that have a file of their own.
std::unique_ptr<Operation> make_linear(const OpReader& op);
std::unique_ptr<Operation> make_head_linear(const OpReader& op);
std::unique_ptr<Operation> make_chosen_linear(const OpReader& op);
std::unique_ptr<Operation> make_attention(const OpReader& op);
std::unique_ptr<Operation> make_choose(const OpReader& op);
std::unique_ptr<Operation> make_experts(const OpReader& op);
std::unique_ptr<Operation> make_embed(const OpReader& op);
std::unique_ptr<Operation> make_rms_norm(const OpReader& op);
std::unique_ptr<Operation> make_layer_norm(const OpReader& op);
std::unique_ptr<Operation> make_bound(const OpReader& op);
std::unique_ptr<Operation> make_head_copy(const OpReader& op);
std::unique_ptr<Operation> make_rope(const OpReader& op);
std::unique_ptr<Operation> make_route(const OpReader& op);
std::unique_ptr<Operation> make_glu(const OpReader& op);
std::unique_ptr<Operation> make_sigmoid_gate(const OpReader& op);
std::unique_ptr<Operation> make_add(const OpReader& op);
std::unique_ptr<Operation> make_scale(const OpReader& op);
std::unique_ptr<Operation> make_select(const OpReader& op);
std::unique_ptr<Operation> make_conv(const OpReader& op);
std::unique_ptr<Operation> make_delta_rule(const OpReader& op);
std::unique_ptr<Operation> make_ssm(const OpReader& op);
std::unique_ptr<Operation> make_compress(const OpReader& op);
std::unique_ptr<Operation> make_compressed_attention(const OpReader& op);
std::unique_ptr<Operation> make_l2_norm(const OpReader& op);
std::unique_ptr<Operation> make_decay(const OpReader& op);
std::unique_ptr<Operation> make_gated_norm(const OpReader& op);
std::unique_ptr<Operation> make_gate(const OpReader& op);
std::unique_ptr<Operation> make_stream_weights(const OpReader& op);
std::unique_ptr<Operation> make_collapse(const OpReader& op);
std::unique_ptr<Operation> make_expand(const OpReader& op);
std::unique_ptr<Operation> make_relu2(const OpReader& op);

}  // namespace freetoken
