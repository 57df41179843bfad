// The table of operations of one instruction set: compiled once for each, with FREETOKEN_OPERATIONS
// the name of the table and FREETOKEN_ISA that of the instruction set.
#include "ops/attention.h"
#include "ops/compress.h"
#include "ops/conv.h"
#include "ops/delta_rule.h"
#include "ops/gates.h"
#include "ops/index_scores.h"
#include "ops/ops.h"
#include "ops/route.h"
#include "ops/rows.h"
#include "ops/ssm.h"
#include "ops/streams.h"
#include "ops/tables.h"

namespace freetoken {

const Operations FREETOKEN_OPERATIONS = {
    FREETOKEN_ISA,
    scale_row,
    bias_scale,
    rms_norm,
    layer_norm,
    bound,
    add,
    sigmoid_gate,
    rope,
    route,
    weigh,
    merge,
    store_cached,
    store_key,
    attention_scratch,
    attend_block,
    merge_attention,
    finish_attention,
    index_scratch,
    index_scores,
    l2_norm,
    decay,
    gate,
    gated_norm,
    relu2,
    weights_of_streams,
    expand_streams,
    conv,
    delta_rule,
    ssm,
    compress,
};

}  // namespace freetoken
