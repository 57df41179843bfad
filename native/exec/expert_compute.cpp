#include "exec/expert_compute.h"

#include <algorithm>
#include <cstring>

#include "exec/column_order.h"

namespace freetoken {
namespace {

size_t padded(int n) {
    return (static_cast<size_t>(n) + 15) / 16 * 16;
}

// Where up's values begin in a row: behind the gate's, if those are stored apart.
size_t up_column(const RecordLayout& layout) {
    return layout.gate.present ? padded(layout.width) : 0;
}

Activations from_row(const Activations& x, int row) {
    if (x.index != nullptr) return {x.data, x.stride, x.index + row};
    return {x.data + static_cast<size_t>(row) * x.stride, x.stride, nullptr};
}

// Whether gate and up read their input in one order.
bool share_an_order(const ExpertRecord& expert) {
    const RecordLayout& layout = *expert.layout;
    return layout.gate_order.present && layout.up_order.present &&
           std::memcmp(layout.gate_order.vector(expert.data), layout.up_order.vector(expert.data),
                       static_cast<size_t>(layout.hidden) * sizeof(float)) == 0;
}

// The input of `count` tokens, packed in the orders of gate and up.
GateUpInput in_order(const Machine& machine, const ExpertRecord& expert, const ExpertInput& x, int first, int count,
                     uint8_t* memory) {
    const RecordLayout& layout = *expert.layout;
    const ExpertScratch scratch(machine, layout);
    const size_t stride = scratch.input_stride();
    const auto pack = [&](const RecordField& order, uint8_t* out) {
        pack_in_order(machine, expert, order, *x.plain, x.tokens + first, count, memory, out, stride);
        return Activations{out, stride, nullptr};
    };
    const Activations gate = pack(layout.gate_order, scratch.gate_input(memory));
    return {gate, share_an_order(expert) ? gate : pack(layout.up_order, scratch.up_input(memory))};
}

void add_bias(const Machine& machine, const float* bias, float* y, int n) {
    if (bias != nullptr) machine.operations->bias_scale(y, bias, 1.0f, n);
}

}  // namespace

size_t gate_up_stride(const RecordLayout& layout) {
    return (layout.gated() ? 2 : 1) * padded(layout.width);
}

int gate_up_tasks(const RecordLayout& layout) {
    return static_cast<int>(tile_count(layout.width)) * (layout.gate.present ? 2 : 1);
}

int64_t gate_up_task_bytes(const RecordLayout& layout) {
    if (layout.gate_up.present) return 2 * tile_bytes(layout.gate_up.codec, layout.hidden);
    const int64_t up = tile_bytes(layout.up.codec, layout.hidden);
    return layout.gate.present ? std::max(tile_bytes(layout.gate.codec, layout.hidden), up) : up;
}

void multiply_gate_up(const Machine& machine, const ExpertRecord& expert, int begin, int end, const GateUpInput& x,
                      int tokens, float* out, size_t stride) {
    const RecordLayout& layout = *expert.layout;
    if (layout.gate_up.present) {
        machine.kernels->gemm(layout.gate_up.matrix(expert.data), 2 * begin, 2 * end, x.gate, tokens, out, stride);
        return;
    }
    const int tiles = layout.gate.present ? static_cast<int>(tile_count(layout.width)) : 0;
    if (begin < tiles)
        machine.kernels->gemm(layout.gate.matrix(expert.data), begin, std::min(end, tiles), x.gate, tokens, out,
                              stride);
    if (end > tiles)
        machine.kernels->gemm(layout.up.matrix(expert.data), std::max(begin, tiles) - tiles, end - tiles, x.up, tokens,
                              out + up_column(layout), stride);
}

void activate(const Machine& machine, const Glu& glu, const ExpertRecord& expert, float* gate_up, float* h) {
    const RecordLayout& layout = *expert.layout;
    const float* gate_bias = layout.gate_bias.vector(expert.data);
    const float* up_bias = layout.up_bias.vector(expert.data);
    if (layout.gate_up.present) {
        machine.kernels->glu_tiles(glu, gate_up, gate_bias, up_bias, layout.width, h);
        return;
    }
    float* up = gate_up + up_column(layout);
    add_bias(machine, up_bias, up, layout.width);
    if (layout.gate.present) add_bias(machine, gate_bias, gate_up, layout.width);
    machine.kernels->glu(glu, layout.gate.present ? gate_up : nullptr, up, layout.width, h);
}

void multiply_down(const Machine& machine, const ExpertRecord& expert, int begin, int end, const Activations& h,
                   int tokens, float* out, size_t stride) {
    const RecordLayout& layout = *expert.layout;
    machine.kernels->gemm(layout.down.matrix(expert.data), begin, end, h, tokens, out, stride);
    const float* bias = layout.down_bias.vector(expert.data);
    if (bias == nullptr) return;
    const int first = begin * kTileRows;
    const int count = std::min(end * kTileRows, layout.hidden) - first;
    for (int t = 0; t < tokens; ++t)
        add_bias(machine, bias + first, out + static_cast<size_t>(t) * stride + first, count);
}

ExpertScratch::ExpertScratch(const Machine& machine, const RecordLayout& layout)
    : hidden_(kExpertTokens * gate_up_stride(layout) * sizeof(float)),
      packed_(hidden_ + padded(layout.width) * sizeof(float)),
      packed_stride_(machine.kernels->activation_bytes(activation_form(layout.down.codec), layout.width)),
      columns_(packed_ + kExpertTokens * packed_stride_),
      gathered_(columns_ + padded(layout.hidden) * sizeof(int32_t)),
      input_(gathered_ + padded(layout.hidden) * sizeof(float)),
      input_stride_(machine.kernels->activation_bytes(layout.input_form(), layout.hidden)),
      bytes_(layout.ordered() ? input_ + 2 * kExpertTokens * input_stride_ : columns_) {}

void pack_in_order(const Machine& machine, const ExpertRecord& expert, const RecordField& order, const Buffer& x,
                   const int32_t* index, int tokens, uint8_t* scratch, uint8_t* out, size_t stride) {
    const RecordLayout& layout = *expert.layout;
    const ExpertScratch places(machine, layout);
    int32_t* columns = places.columns(scratch);
    if (order.present) read_columns(order.vector(expert.data), layout.hidden, columns);
    for (int t = 0; t < tokens; ++t) {
        const float* values = x.row(index[t]);
        if (order.present) gather(values, columns, layout.hidden, places.gathered(scratch));
        machine.kernels->pack_activations(layout.input_form(), order.present ? places.gathered(scratch) : values,
                                          layout.hidden, out + static_cast<size_t>(t) * stride);
    }
}

void run_expert(const Machine& machine, const Glu& glu, const ExpertRecord& expert, const ExpertInput& x, int tokens,
                uint8_t* memory, float* out, size_t stride) {
    const RecordLayout& layout = *expert.layout;
    const ExpertScratch scratch(machine, layout);
    const ActivationForm form = activation_form(layout.down.codec);
    for (int first = 0; first < tokens; first += kExpertTokens) {
        const int count = std::min(kExpertTokens, tokens - first);
        float* gate_up = scratch.gate_up(memory);
        const GateUpInput input = layout.ordered() ? in_order(machine, expert, x, first, count, memory)
                                                   : GateUpInput{from_row(x.packed, first), from_row(x.packed, first)};
        multiply_gate_up(machine, expert, 0, gate_up_tasks(layout), input, count, gate_up, gate_up_stride(layout));
        for (int t = 0; t < count; ++t) {
            float* h = scratch.hidden(memory);
            activate(machine, glu, expert, gate_up + static_cast<size_t>(t) * gate_up_stride(layout), h);
            uint8_t* packed = scratch.packed(memory) + static_cast<size_t>(t) * scratch.packed_stride();
            machine.kernels->pack_activations(form, h, layout.width, packed);
        }
        const Activations h = {scratch.packed(memory), scratch.packed_stride(), nullptr};
        multiply_down(machine, expert, 0, static_cast<int>(tile_count(layout.hidden)), h, count,
                      out + static_cast<size_t>(first) * stride, stride);
    }
}

}  // namespace freetoken
