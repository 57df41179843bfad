// The (token, expert) pairs of one layer, done by all threads together: tokens
// grouped by expert, whole experts by single threads, the rest by all. What the
// operation `experts` does, and the worker beside a device.
#pragma once

#include <vector>

#include "exec/expert_compute.h"
#include "exec/expert_groups.h"
#include "exec/storage.h"

namespace freetoken {

// The input as records of one form read it. `stale`: packed before it is read.
struct PackedInput {
    const PackedRows* rows = nullptr;
    bool stale = false;
};

class ExpertPairs {
public:
    struct Parts {
        Glu glu;
        std::vector<ExpertRecord> records;  // of one layer, of one hidden size; not empty
        std::vector<PackedInput> inputs;    // one for every form that records without orders read
    };

    // All but the parts is borrowed. `x` holds the tokens' rows.
    ExpertPairs(const Machine& machine, const Buffer& x, Parts parts, Workspace& workspace, ExpertCounters& counters);

    // Pack the input (of the shared experts alone where experts have orders);
    // whole experts, and gate and up of the shared ones; activation and down of
    // these; put the outputs where they are wanted.
    static constexpr int kPhases = 5;
    size_t scratch_bytes() const { return scratch_bytes_; }

    // As those of an Operation. `outputs`, if not null, gets the output of the
    // pair at place i of the list in row i, `output_stride` values apart; both
    // must stay as they are until the last phase is done.
    Work prepare(int phase, const PairIds& list, float* outputs);
    void run(int phase, TaskRange tasks, uint8_t* scratch);

    // Where rows were not asked for elsewhere: the output of a token's pair,
    // until the next list. The token's input where that is what comes out.
    const float* output(int token, int place) const {
        const int32_t pair = groups_.pairs_of(token)[place];
        return pair < 0 ? x_.row(token) : kept_row(pair);
    }
    size_t output_stride() const { return output_stride_; }

    // The records' forms without repetition: what `Parts::inputs` must have.
    static std::vector<ActivationForm> input_forms(const std::vector<ExpertRecord>& records);

private:
    // An expert that all threads work on, and where its rows lie.
    struct SharedExpert {
        ExpertGroups::Group group;
        int first_row = 0;
    };

    // A run of tiles of a shared expert.
    struct Piece {
        size_t expert = 0;
        int begin = 0;
        int end = 0;
    };

    void plan(const PairIds& list);
    void cut(std::vector<Piece>& into, int tiles, int64_t tile_bytes) const;
    bool has_pairs(int token) const;

    void pack(int token) const;
    void pack_shared(int row, uint8_t* scratch);
    void run_whole(const ExpertGroups::Group& group, uint8_t* scratch);
    void run_gate_up(const Piece& piece);
    void run_activation(int row, uint8_t* scratch);
    void run_down(const Piece& piece);
    void deliver(const ExpertGroups::Group& group) const;

    const ExpertRecord& record(const ExpertGroups::Group& group) const {
        return parts_.records[static_cast<size_t>(group.expert)];
    }
    Activations input(const ExpertGroups::Group& group) const;
    GateUpInput shared_input(const SharedExpert& shared) const;
    size_t shared_expert_of(int row) const;
    float* output_of(const ExpertGroups::Group& group) const;

    float* kept_row(int pair) const {
        return workspace_.expert_outputs.floats() + static_cast<size_t>(pair) * output_stride_;
    }
    float* wanted_row(int place) const { return outputs_ + static_cast<size_t>(place) * output_stride_; }
    float* gate_up_row(int row) const {
        return workspace_.expert_gate_up.floats() + static_cast<size_t>(row) * gate_up_stride_;
    }
    uint8_t* hidden_row(int row) const {
        return workspace_.expert_hidden.data() + static_cast<size_t>(row) * hidden_stride_;
    }
    // Of a row of the shared experts, in the order of gate, and `stride` behind
    // it in that of up.
    uint8_t* input_row(int row) const {
        return workspace_.expert_inputs.data() + 2 * static_cast<size_t>(row) * input_stride_;
    }

    const Machine machine_;
    const Buffer& x_;
    const Parts parts_;
    Workspace& workspace_;
    ExpertCounters& counters_;
    size_t output_stride_;  // values
    size_t scratch_bytes_ = 0;
    size_t hidden_stride_ = 0;   // bytes
    size_t gate_up_stride_ = 0;  // values
    size_t input_stride_ = 0;    // bytes
    int width_ = 0;
    bool ordered_ = false;  // experts read their input in orders of their own
    bool stale_ = false;    // some packed input is

    // The list under way.
    ExpertGroups groups_;
    int tokens_ = 0;
    float* outputs_ = nullptr;
    uint32_t whole_ = 0;     // groups that single threads run
    uint32_t repeated_ = 0;  // groups of more than one pair
    int repeated_rows_ = 0;
    std::vector<SharedExpert> shared_;
    std::vector<Piece> gate_up_;
    std::vector<Piece> down_;
    int shared_rows_ = 0;
};

}  // namespace freetoken
