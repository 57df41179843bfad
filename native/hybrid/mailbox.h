// Where a device and the CPU worker hand the experts of one layer to each other: one block of host memory that both
// reach. Compiled for the host and for devices, so plain data and no standard headers but <cstdint>.
//
// The device writes `rows`, `top_k`, the ids and the inputs, clears `done`, and then writes `request`. The worker sets
// `request` back to 0, computes, writes the output rows, and then `done`. Whoever waits reads what was written before.
//
// Behind the header lie, each from a multiple of 64 bytes:
//   ids     i32 [max_tokens][top_k]                     the expert of each (token, place) pair, -1: not the worker's
//   inputs  f32 [max_tokens][mailbox_row_stride]        of tokens with at least one pair of the worker's; others stale
//   outputs f32 [max_tokens * top_k][mailbox_row_stride]  of the worker's pairs, by token and then place; others stale
// Rows of ids lie `top_k` of the header apart, as the pairs of the outputs do; the sizes of the block are the largest.
#pragma once

#include <cstdint>

namespace freetoken {

// Each word has a line of 64 bytes to itself: the two sides poll some of them while the other side writes others.
struct MailboxHeader {
    alignas(64) uint32_t request;  // 0, or MoE layer + 1
    alignas(64) uint32_t done;     // 0, or MoE layer + 1 of the request that is answered
    alignas(64) uint32_t failed;   // 1: some answer since the step began is not to be used
    alignas(64) uint32_t rows;     // live tokens
    alignas(64) uint32_t top_k;    // pairs of a token
};
static_assert(sizeof(MailboxHeader) == 320, "five words, a line each");

// Values between rows of inputs, and of outputs.
static constexpr uint64_t mailbox_row_stride(uint64_t hidden) {
    return (hidden + 15) / 16 * 16;
}

// Byte offsets of the arrays, and the bytes of the whole block.
struct MailboxLayout {
    uint64_t ids;
    uint64_t inputs;
    uint64_t outputs;
    uint64_t bytes;
};

static constexpr MailboxLayout mailbox_layout(uint64_t max_tokens, uint64_t top_k, uint64_t hidden) {
    const uint64_t row_bytes = mailbox_row_stride(hidden) * sizeof(float);
    const uint64_t ids = sizeof(MailboxHeader);
    const uint64_t inputs = ids + (max_tokens * top_k * sizeof(int32_t) + 63) / 64 * 64;
    const uint64_t outputs = inputs + max_tokens * row_bytes;
    return {ids, inputs, outputs, outputs + max_tokens * top_k * row_bytes};
}

}  // namespace freetoken
