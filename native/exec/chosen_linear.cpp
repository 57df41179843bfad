// Products of every token with matrices that were chosen for it.
#include <algorithm>

#include "exec/builder.h"
#include "exec/expert_groups.h"

namespace freetoken {
namespace {

constexpr int kTilesOfTask = 4;
constexpr int kTokenBlock = 64;

// Equal matrices stacked by rows, of which a token has been given some. Run j of y is the product with the j-th of them
// of run j of x, or of all of x. A task is some tiles of one matrix, for all that chose it.
class ChosenLinear final : public Operation {
public:
    struct Shape {
        PackedMatrix matrix;  // all of them
        int matrices;
        int rows;    // of one
        int top_k;   // a token
        bool apart;  // every one has a run of x of its own
    };

    ChosenLinear(const Machine& machine, const Buffer& x, const Buffer& ids, const Buffer& y, const Shape& shape,
                 Mapping& packed)
        : Operation(Clock::dense),
          machine_(machine),
          x_(x),
          ids_(ids),
          y_(y),
          shape_(shape),
          form_(activation_form(shape.matrix.codec)),
          packed_stride_(machine.kernels->activation_bytes(form_, shape.matrix.cols)),
          packed_(packed) {}

    int phases() const override { return 2; }
    size_t scratch_bytes() const override { return sizeof(float) * kTokenBlock * kTilesOfTask * kTileRows; }

    Work prepare(int phase, const Step& step) override {
        const int rows = step.tokens * (shape_.apart ? shape_.top_k : 1);
        if (phase == 0) {
            packed_.reserve(static_cast<size_t>(rows) * packed_stride_);
            return {{static_cast<uint32_t>(rows), 8}, int64_t{2} * rows * shape_.matrix.cols};
        }
        groups_.gather({step.tokens, shape_.top_k, ids_.int_row(0), ids_.stride}, shape_.matrices);
        const auto tasks = static_cast<uint32_t>(groups_.groups().size()) * tasks_of_matrix();
        return {{tasks, 1}, int64_t{groups_.pairs()} * shape_.rows * shape_.matrix.cols};
    }

    void run(int phase, const Step&, TaskRange tasks, uint8_t* scratch) override {
        for (uint32_t i = tasks.begin; i < tasks.end; ++i) {
            if (phase == 0)
                pack(static_cast<int>(i));
            else
                multiply(groups_.groups()[i / tasks_of_matrix()], static_cast<int>(i % tasks_of_matrix()),
                         reinterpret_cast<float*>(scratch));
        }
    }

private:
    // A matrix may begin and end within a tile.
    int tiles_of_matrix() const { return shape_.rows / kTileRows + (shape_.rows % kTileRows == 0 ? 0 : 2); }
    uint32_t tasks_of_matrix() const {
        return static_cast<uint32_t>((tiles_of_matrix() + kTilesOfTask - 1) / kTilesOfTask);
    }

    void pack(int i) {
        const int runs = shape_.apart ? shape_.top_k : 1;
        const float* values = x_.row(i / runs) + i % runs * shape_.matrix.cols;
        machine_.kernels->pack_activations(form_, values, shape_.matrix.cols,
                                           packed_.data() + static_cast<size_t>(i) * packed_stride_);
    }

    // Whole tiles go to `temporary`, the rows of the matrix from there.
    void multiply(const ExpertGroups::Group& group, int task, float* temporary) {
        const int first_row = group.expert * shape_.rows;
        const int end_row = first_row + shape_.rows;
        const int tile = first_row / kTileRows + task * kTilesOfTask;
        const int tiles = std::min(kTilesOfTask, static_cast<int>(tile_count(end_row)) - tile);
        if (tiles <= 0) return;
        const int begin = std::max(first_row, tile * kTileRows);
        const int end = std::min(end_row, (tile + tiles) * kTileRows);
        const int32_t* places = groups_.places(group);
        const int32_t* inputs = shape_.apart ? places : groups_.tokens(group);
        const PackedMatrix matrix = {shape_.matrix.codec, tiles * kTileRows, shape_.matrix.cols,
                                     shape_.matrix.data + tile * tile_bytes(shape_.matrix.codec, shape_.matrix.cols)};
        const size_t stride = static_cast<size_t>(tiles) * kTileRows;
        for (int pair = 0; pair < group.count; pair += kTokenBlock) {
            const int count = std::min(kTokenBlock, group.count - pair);
            const Activations x = {packed_.data(), packed_stride_, inputs + pair};
            machine_.kernels->gemm(matrix, 0, tiles, x, count, temporary, stride);
            for (int t = 0; t < count; ++t) {
                const int place = places[pair + t];
                float* run = y_.row(place / shape_.top_k) + place % shape_.top_k * shape_.rows;
                const float* from = temporary + static_cast<size_t>(t) * stride + (begin - tile * kTileRows);
                std::copy_n(from, end - begin, run + (begin - first_row));
            }
        }
    }

    const Machine machine_;
    const Buffer& x_;
    const Buffer& ids_;
    const Buffer& y_;
    const Shape shape_;
    const ActivationForm form_;
    const size_t packed_stride_;
    Mapping& packed_;
    ExpertGroups groups_;
};

}  // namespace

std::unique_ptr<Operation> make_chosen_linear(const OpReader& op) {
    op.arity(2, 1, 1);
    const Buffer& x = op.read(0);
    const Buffer& ids = op.read(1);
    const Buffer& y = op.write(0);
    ChosenLinear::Shape shape;
    shape.matrix = op.matrix(0);
    shape.matrices = op.integer("matrices");
    op.require(shape.matrices > 0 && shape.matrix.rows % shape.matrices == 0, "the rows do not divide into matrices");
    shape.rows = shape.matrix.rows / shape.matrices;
    shape.top_k = ids.width;
    shape.apart = x.width != shape.matrix.cols;
    op.require(ids.integers && !x.per_row && !ids.per_row && !y.per_row, "reads numbers of matrices, a row a token");
    op.require(int64_t{shape.matrix.cols} * (shape.apart ? shape.top_k : 1) == x.width,
               "buffer " + x.name + " has neither one run nor one for each chosen matrix");
    op.width(y, int64_t{shape.rows} * shape.top_k);
    return std::make_unique<ChosenLinear>(op.builder.machine(), x, ids, y, shape,
                                          op.builder.storage().workspace.head_rows);
}

}  // namespace freetoken
