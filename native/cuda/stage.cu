// Hands the CPU worker its share of a layer: what `plan` left to it goes into the mailbox, which is memory of the host.
#include "cuda/cache_state.h"
#include "cuda/device.h"
#include "hybrid/mailbox.h"

namespace freetoken {

// x is [bucket][x_stride], ids and target are [bucket][top_k]; the first `rows` tokens are live. Of the mailbox this
// writes all but `request`, `failed` and the outputs; inputs only of tokens with a pair for the CPU. The stream writes
// `request` after this kernel.
// Grid (any, bucket): the blocks of a token share its columns.
extern "C" __global__ void stage(const float* x, int32_t x_stride, const int32_t* ids, const int32_t* target,
                                 const int32_t* rows, int32_t top_k, int32_t hidden, MailboxHeader* box,
                                 int32_t* box_ids, float* box_x) {
    const auto token = static_cast<int>(blockIdx.y);
    const auto thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const auto threads = static_cast<int>(gridDim.x * blockDim.x);
    if (token == 0 && thread == 0) {
        box->rows = static_cast<uint32_t>(*rows);
        box->top_k = static_cast<uint32_t>(top_k);
        box->done = 0;
    }
    if (token < *rows) {
        bool for_cpu = false;
        for (int place = 0; place < top_k; ++place) for_cpu |= target[token * top_k + place] == kTargetCpu;
        for (int place = thread; place < top_k; place += threads) {
            const int pair = token * top_k + place;
            box_ids[pair] = target[pair] == kTargetCpu ? ids[pair] : -1;
        }
        if (for_cpu) {
            const float* from = x + static_cast<uint64_t>(token) * static_cast<uint32_t>(x_stride);
            float* to = box_x + static_cast<uint64_t>(token) * mailbox_row_stride(static_cast<uint32_t>(hidden));
            for (int column = thread; column < hidden; column += threads) to[column] = from[column];
        }
    }
    fence_system();
}

}  // namespace freetoken
