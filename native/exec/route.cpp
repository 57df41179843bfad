// The choice of a token's experts.
#include <algorithm>
#include <string>
#include <vector>

#include "exec/rows.h"

namespace freetoken {
namespace {

Scoring scoring_of(const OpReader& op, const std::string& name) {
    if (name == "softmax") return Scoring::softmax;
    if (name == "sigmoid") return Scoring::sigmoid;
    if (name == "softmax_topk") return Scoring::softmax_topk;
    if (name == "sigmoid_topk") return Scoring::sigmoid_topk;
    if (name == "sqrt_softplus") return Scoring::sqrt_softplus;
    if (name == "sparse_mixer") return Scoring::sparse_mixer;
    op.fail("the scoring " + name + " is unknown");
}

constexpr int kAside = -1;  // of a router that chooses something else than experts

// The experts of every token id, [ids][top_k]; empty where a token's scores choose them.
std::vector<int32_t> experts_of_tokens(const OpReader& op, const RouteShape& shape) {
    if (!op.has_weight(1)) return {};
    const int length = op.vector_length(1);
    op.require(length > 0 && length % shape.top_k == 0, "its table does not have experts for every token");
    const float* given = op.vector(1, length);
    int& rows = op.builder.storage().token_rows;
    rows = std::min(rows, length / shape.top_k);
    std::vector<int32_t> table(static_cast<size_t>(length));
    for (size_t i = 0; i < table.size(); ++i) {
        op.require(given[i] >= 0.0f && given[i] < static_cast<float>(shape.experts) &&
                       given[i] == static_cast<float>(static_cast<int32_t>(given[i])),
                   "its table names experts that are not there");
        table[i] = static_cast<int32_t>(given[i]);
        const auto first = table.begin() + static_cast<std::ptrdiff_t>(i - i % static_cast<size_t>(shape.top_k));
        const auto own = table.begin() + static_cast<std::ptrdiff_t>(i);
        op.require(std::find(first, own, table[i]) == own, "its table names an expert twice for a token");
    }
    return table;
}

}  // namespace

std::unique_ptr<Operation> make_route(const OpReader& op) {
    op.require(op.weights() >= 1 && op.weights() <= 3, "takes a bias, perhaps a table and scales of experts");
    op.arity(1, 2, op.weights());
    const Buffer& logits = op.read(0);
    const Buffer& ids = op.write(0);
    const Buffer& weights = op.write(1);
    RouteShape shape;
    shape.experts = logits.width;
    shape.top_k = op.integer("top_k");
    shape.groups = op.integer("groups");
    shape.top_groups = op.integer("top_groups");
    shape.group_top = op.integer("group_top");
    shape.normalize = op.flag("normalize");
    shape.scale = op.real("scale");
    shape.bias = op.optional_vector(0, logits.width);
    if (op.has_weight(2)) shape.expert_scale = op.vector(2, logits.width);
    shape.scoring = scoring_of(op, op.text("scoring"));
    if (shape.scoring == Scoring::sparse_mixer) shape.jitter = op.real("jitter");
    op.width(ids, shape.top_k);
    op.width(weights, shape.top_k);
    same_domain(op, logits, ids);
    same_domain(op, logits, weights);
    op.require(ids.integers && !weights.integers, "writes integers to its first output and numbers to its second");
    op.require(shape.experts <= kMostExperts, "more than " + std::to_string(kMostExperts) + " experts");
    op.require(shape.groups >= 1 && shape.experts % shape.groups == 0, "the groups do not divide the experts");
    op.require(shape.top_groups >= 1 && shape.top_groups <= shape.groups, "too many or no groups are kept");
    op.require(shape.groups == 1 || shape.group_top >= 1, "a group must be judged by at least one expert");
    op.require(shape.top_k >= 1 && shape.top_k <= shape.experts / shape.groups * shape.top_groups,
               "more experts are wanted than there are to choose from");
    const Operations& operations = op.operations();
    const std::vector<int32_t> table = experts_of_tokens(op, shape);
    Routing& routing = op.builder.storage().routing;
    const bool aside = op.has_attribute("aside") && op.flag("aside");
    const int layer = aside ? kAside : routing.add_layer(shape.experts, shape.top_k);
    return row_operation(logits, int64_t{shape.experts} * (shape.top_k + 8),
                         [=, &logits, &ids, &weights, &operations, &routing](const Step& step, int row) {
                             float scratch[3 * kMostExperts];
                             int32_t* chosen = ids.int_row(row);
                             const int32_t* given = aside ? nullptr : routing.forced(layer, row);
                             if (given == nullptr && !table.empty())
                                 given = table.data() +
                                         static_cast<size_t>(step.ids[row]) * static_cast<size_t>(shape.top_k);
                             if (given != nullptr) {
                                 std::copy_n(given, shape.top_k, chosen);
                                 operations.weigh(shape, logits.row(row), scratch, chosen, weights.row(row));
                             } else {
                                 operations.route(shape, logits.row(row), scratch, chosen, weights.row(row));
                             }
                             if (!aside) routing.keep(layer, row, chosen);
                         });
}

}  // namespace freetoken
