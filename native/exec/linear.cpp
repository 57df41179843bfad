// Products of dense matrices with all tokens of a step.
#include <algorithm>

#include "exec/builder.h"
#include "exec/column_order.h"

namespace freetoken {
namespace {

// The fewest weights taken at a time: what threads wait for each other at most.
constexpr int64_t kTaskBytes = 16 * 1024;
// Where there are many tokens, so many are multiplied by so many weights at a time: both stay in the second-level
// cache.
constexpr int kTokenBlock = 64;
constexpr int64_t kCachedBytes = 256 * 1024;

int tiles_of(int64_t bytes, const PackedMatrix& matrix) {
    return static_cast<int>(std::max<int64_t>(1, bytes / tile_bytes(matrix.codec, matrix.cols)));
}

// One or several matrices that read the same buffer: their tiles are one list of tasks.
class Linear final : public Operation {
public:
    struct Part {
        PackedMatrix matrix;
        const float* bias;
        const Buffer* y;
        const PackedRows* x;
        uint32_t first_tile;  // in the list of all parts
    };
    // Rows that are to be packed before the product.
    struct Packing {
        const PackedRows* rows;
        const int32_t* order;  // of the columns, where it is not that of x
    };

    Linear(const Machine& machine, const Buffer& x, float scale, std::vector<Part> parts, std::vector<Packing> packings)
        : Operation(Clock::dense),
          machine_(machine),
          x_(x),
          scale_(scale),
          parts_(std::move(parts)),
          packings_(std::move(packings)) {
        for (const Part& part : parts_) {
            tiles_ += static_cast<uint32_t>(tile_count(part.matrix.rows));
            weights_ += int64_t{part.matrix.rows} * part.matrix.cols;
        }
        grain_ = static_cast<uint32_t>(tiles_of(kTaskBytes, parts_[0].matrix));
        ordered_ = std::any_of(packings_.begin(), packings_.end(), [](const Packing& p) { return p.order != nullptr; });
    }

    int phases() const override { return 2; }
    size_t scratch_bytes() const override { return ordered_ ? static_cast<size_t>(x_.width) * sizeof(float) : 0; }

    Work prepare(int phase, const Step& step) override {
        const int rows = x_.rows(step);
        if (rows == 0) return {};
        if (phase == 1) return {{tiles_, grain_}, weights_ * rows};
        if (packings_.empty()) return {};
        return {{static_cast<uint32_t>(rows), 4}, int64_t{2} * x_.width * rows};
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        if (phase == 0)
            pack(tasks, reinterpret_cast<float*>(scratch));
        else
            multiply(x_.rows(step), tasks);
    }

private:
    void pack(TaskRange rows, float* gathered) {
        for (const Packing& packing : packings_) {
            for (uint32_t i = rows.begin; i < rows.end; ++i) {
                const float* values = x_.row(static_cast<int>(i));
                if (packing.order != nullptr) gather(values, packing.order, x_.width, gathered);
                packing.rows->pack(*machine_.kernels, packing.order != nullptr ? gathered : values, i);
            }
        }
    }

    void multiply(int rows, TaskRange tiles) {
        for (const Part& part : parts_) {
            const auto count = static_cast<uint32_t>(tile_count(part.matrix.rows));
            const uint32_t begin = std::max(tiles.begin, part.first_tile);
            const uint32_t end = std::min(tiles.end, part.first_tile + count);
            if (begin >= end) continue;
            const auto first = static_cast<int>(begin - part.first_tile);
            const auto last = static_cast<int>(end - part.first_tile);
            const int step = rows > kTokenBlock ? tiles_of(kCachedBytes, part.matrix) : last - first;
            for (int tile = first; tile < last; tile += step) {
                for (int row = 0; row < rows; row += kTokenBlock)
                    multiply_part(part, tile, std::min(tile + step, last), row, std::min(kTokenBlock, rows - row));
            }
        }
    }

    void multiply_part(const Part& part, int tile_begin, int tile_end, int row, int rows) {
        const Activations x = {part.x->row(static_cast<size_t>(row)), part.x->stride, nullptr};
        machine_.kernels->gemm(part.matrix, tile_begin, tile_end, x, rows, part.y->row(row), part.y->stride);
        if (part.bias == nullptr && scale_ == 1.0f) return;
        const int first = tile_begin * kTileRows;
        const int count = std::min(tile_end * kTileRows, part.matrix.rows) - first;
        for (int t = row; t < row + rows; ++t)
            machine_.operations->bias_scale(part.y->row(t) + first, part.bias == nullptr ? nullptr : part.bias + first,
                                            scale_, count);
    }

    const Machine machine_;
    const Buffer& x_;
    const float scale_;
    const std::vector<Part> parts_;
    const std::vector<Packing> packings_;
    bool ordered_ = false;
    uint32_t tiles_ = 0;
    uint32_t grain_ = 1;
    int64_t weights_ = 0;
};

// A matrix of its own for every head; a task is a head.
class HeadLinear final : public Operation {
public:
    struct Shape {
        PackedMatrix matrix;  // of all heads, stacked by rows
        int heads;
        int rows;  // of one head
        int in_stride;
        int in_offset;
        int out_stride;
        int out_offset;
    };

    HeadLinear(const Machine& machine, const Buffer& x, const Buffer& y, const Shape& shape, Mapping& packed)
        : Operation(Clock::dense),
          machine_(machine),
          x_(x),
          y_(y),
          shape_(shape),
          form_(activation_form(shape.matrix.codec)),
          packed_stride_(machine.kernels->activation_bytes(form_, shape.matrix.cols)),
          packed_(packed) {}

    int phases() const override { return 2; }
    size_t scratch_bytes() const override { return kTokenBlock * head_stride() * sizeof(float); }

    Work prepare(int phase, const Step& step) override {
        const int rows = x_.rows(step);
        const auto heads = static_cast<uint32_t>(shape_.heads);
        const int64_t values = int64_t{rows} * shape_.heads * shape_.matrix.cols;
        if (phase == 0) {
            packed_.reserve(static_cast<size_t>(rows) * heads * packed_stride_);
            return {{static_cast<uint32_t>(rows) * heads, 8}, 2 * values};
        }
        return {{rows == 0 ? 0 : heads, 1}, values * shape_.rows};
    }

    void run(int phase, const Step& step, TaskRange tasks, uint8_t* scratch) override {
        if (phase == 0)
            pack(tasks);
        else
            for (uint32_t head = tasks.begin; head < tasks.end; ++head)
                multiply(static_cast<int>(head), x_.rows(step), reinterpret_cast<float*>(scratch));
    }

private:
    // Rows of whole tiles that any head's rows can touch.
    size_t head_stride() const { return static_cast<size_t>(shape_.rows + 2 * kTileRows); }

    uint8_t* packed_row(size_t i) const { return packed_.data() + i * packed_stride_; }

    void pack(TaskRange tasks) {
        for (uint32_t i = tasks.begin; i < tasks.end; ++i) {
            const int row = static_cast<int>(i) / shape_.heads;
            const int head = static_cast<int>(i) % shape_.heads;
            const float* values = x_.row(row) + head * shape_.in_stride + shape_.in_offset;
            machine_.kernels->pack_activations(form_, values, shape_.matrix.cols, packed_row(i));
        }
    }

    // A head may begin within a tile: whole tiles go to `temporary`, the head's rows from there.
    void multiply(int head, int rows, float* temporary) {
        const int first_row = head * shape_.rows;
        const int tile_begin = first_row / kTileRows;
        const int tile_end = static_cast<int>(tile_count(first_row + shape_.rows));
        const int64_t stride = tile_bytes(shape_.matrix.codec, shape_.matrix.cols);
        const PackedMatrix tiles = {shape_.matrix.codec, (tile_end - tile_begin) * kTileRows, shape_.matrix.cols,
                                    shape_.matrix.data + tile_begin * stride};
        const auto heads = static_cast<size_t>(shape_.heads);
        for (int row = 0; row < rows; row += kTokenBlock) {
            const int count = std::min(kTokenBlock, rows - row);
            const size_t first = static_cast<size_t>(row) * heads + static_cast<size_t>(head);
            const Activations x = {packed_row(first), packed_stride_ * heads, nullptr};
            machine_.kernels->gemm(tiles, 0, tile_end - tile_begin, x, count, temporary, head_stride());
            for (int t = 0; t < count; ++t) {
                const float* from = temporary + static_cast<size_t>(t) * head_stride() + first_row % kTileRows;
                std::copy_n(from, shape_.rows, y_.row(row + t) + head * shape_.out_stride + shape_.out_offset);
            }
        }
    }

    const Machine machine_;
    const Buffer& x_;
    const Buffer& y_;
    const Shape shape_;
    const ActivationForm form_;
    const size_t packed_stride_;
    Mapping& packed_;  // a row for every token and head
};

// The rows that a matrix reads, for which `packings` gets an entry unless an earlier matrix has made one.
const PackedRows& packed_input(const OpReader& op, const Buffer& x, const OrderedMatrix& weight,
                               std::vector<Linear::Packing>& packings) {
    const ActivationForm form = activation_form(weight.matrix.codec);
    if (weight.order == nullptr) {
        bool stale = false;
        const PackedRows& rows = op.builder.packed(x, form, stale);
        if (stale) packings.push_back({&rows, nullptr});
        return rows;
    }
    int orders = 0;
    for (const Linear::Packing& packing : packings) {
        if (packing.order == nullptr) continue;
        if (packing.order == weight.order && packing.rows->form == form) return *packing.rows;
        ++orders;
    }
    const PackedRows& rows = op.builder.ordered_rows(x.width, form, orders);
    packings.push_back({&rows, weight.order});
    return rows;
}

}  // namespace

std::unique_ptr<Operation> make_linear(const OpReader& op) {
    op.require(op.writes() > 0, "writes nothing");
    op.arity(1, op.writes(), 2 * op.writes());
    const Buffer& x = op.read(0);
    std::vector<Linear::Part> parts;
    std::vector<Linear::Packing> packings;
    uint32_t first_tile = 0;
    for (size_t i = 0; i < op.writes(); ++i) {
        const OrderedMatrix weight = op.ordered_matrix(2 * i);
        const PackedMatrix& matrix = weight.matrix;
        const Buffer& y = op.write(i);
        op.require(matrix.cols == x.width, "buffer " + x.name + " has " + std::to_string(x.width) +
                                               " columns, the matrix " + std::to_string(matrix.cols));
        op.width(y, matrix.rows);
        op.require(x.per_row == y.per_row, "reads and writes rows of different kinds");
        const PackedRows& packed = packed_input(op, x, weight, packings);
        parts.push_back({matrix, op.optional_vector(2 * i + 1, matrix.rows), &y, &packed, first_tile});
        first_tile += static_cast<uint32_t>(tile_count(matrix.rows));
    }
    return std::make_unique<Linear>(op.builder.machine(), x, op.real("scale"), std::move(parts), std::move(packings));
}

std::unique_ptr<Operation> make_head_linear(const OpReader& op) {
    op.arity(1, 1, 1);
    const Buffer& x = op.read(0);
    const Buffer& y = op.write(0);
    HeadLinear::Shape shape;
    shape.matrix = op.matrix(0);
    shape.heads = op.integer("heads");
    op.require(shape.heads > 0 && shape.matrix.rows % shape.heads == 0, "the heads do not divide the matrix");
    shape.rows = shape.matrix.rows / shape.heads;
    shape.in_stride = op.integer("in_stride");
    shape.in_offset = op.integer("in_offset");
    shape.out_stride = op.integer("out_stride");
    shape.out_offset = op.integer("out_offset");
    op.require(shape.in_offset + int64_t{shape.matrix.cols} <= shape.in_stride &&
                   int64_t{shape.in_stride} * shape.heads <= x.width,
               "the heads reach beyond buffer " + x.name);
    op.require(shape.out_offset + int64_t{shape.rows} <= shape.out_stride &&
                   int64_t{shape.out_stride} * shape.heads <= y.width,
               "the heads reach beyond buffer " + y.name);
    op.require(!x.per_row && !y.per_row, "reads and writes one row a token");
    return std::make_unique<HeadLinear>(op.builder.machine(), x, y, shape, op.builder.storage().workspace.head_rows);
}

}  // namespace freetoken
