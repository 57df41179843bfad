"""The scores of an indexer as a Triton kernel; native/cuda/choose.cu finds the best of them.

It follows docs/numerics.md in what it computes and not in its order of sums: a choice is that of the native operation
but where two scores differ by less than that order makes of them.

Triton compiles the functions of this file; nothing else may be imported into them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def score_numbers(
    queries,
    weights,
    cache,
    pages,
    first_pages,
    positions,
    live,
    longest,
    words,
    query_stride,
    weight_stride,
    page_values,
    first,
    HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    K_PLACE: tl.constexpr,
    EVERY: tl.constexpr,
    RUN: tl.constexpr,
    LOCAL: tl.constexpr,
    TOP_K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SETS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    NUMBERS: tl.constexpr,
    EACH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A word for every number that one token may choose, in a row for each of SETS; grid (tokens from `first` on, any).

    A number stands for RUN entries and is worth as much as the best of them, the last LOCAL more than any other. Words
    are unsigned and smaller for what is worth more, equal for equal scores (zeros are), the largest for what is no
    number. Rows are as long as native/cuda/choose.cu says. A token that may choose all that it sees gets no words.

    WEIGHTED: the rectified heads are added, weighted, in one row; else each has its own. A program looks at NUMBERS
    numbers together, each padded to EACH entries, with the heads padded to GROUP and the rows to ROWS.
    """
    token = first + tl.program_id(0)
    if token < tl.load(live):
        entries = (tl.load(positions + token) + 1) // EVERY
        numbers = (entries + RUN - 1) // RUN
        row_words = ((tl.load(longest) // EVERY + RUN - 1) // RUN + 3) // 4 * 4
        if numbers > TOP_K:
            head = tl.arange(0, GROUP)
            is_head = head < HEADS
            query = queries + token.to(tl.int64) * query_stride + head * K_DIM
            table = pages + tl.load(first_pages + token)
            place = tl.arange(0, NUMBERS * EACH)
            step = tl.arange(0, CHUNK)
            row = tl.arange(0, ROWS)
            target = words + (tl.program_id(0) * SETS + row).to(tl.int64) * row_words
            for tile in range(tl.program_id(1), (numbers + NUMBERS - 1) // NUMBERS, tl.num_programs(1)):
                entry = (tile * NUMBERS + place // EACH) * RUN + place % EACH
                seen = (place % EACH < RUN) & (entry < entries)
                end = entry * EVERY + EVERY - 1
                page = tl.load(table + end // 16, mask=seen, other=0).to(tl.int64) * page_values
                key = cache + page + end % 16 // EVERY * K_PLACE
                scores = tl.zeros((GROUP, NUMBERS * EACH), tl.float32)
                for column in range(0, K_DIM, CHUNK):
                    wanted = column + step < K_DIM
                    q = tl.load(
                        query[:, None] + column + step[None, :], mask=is_head[:, None] & wanted[None, :], other=0.0
                    )
                    k = tl.load(key[None, :] + column + step[:, None], mask=seen[None, :] & wanted[:, None], other=0.0)
                    scores += tl.dot(q, k.to(tl.float32), input_precision="ieee")
                if WEIGHTED:
                    weight = tl.load(weights + token.to(tl.int64) * weight_stride + head, mask=is_head, other=0.0)
                    worth = tl.sum(weight[:, None] * tl.maximum(scores, 0.0), 0)[None, :]
                else:
                    worth = scores
                worth = tl.where(seen[None, :], worth, float("-inf"))
                worth = tl.max(tl.reshape(worth, (ROWS, NUMBERS, EACH)), 2)
                number = tile * NUMBERS + tl.arange(0, NUMBERS)
                worth = tl.where((number >= numbers - LOCAL)[None, :], float("inf"), worth)
                bits = tl.where(worth == 0.0, 0.0, worth).to(tl.int32, bitcast=True)
                word = tl.where(bits < 0, bits, bits ^ 0x7FFFFFFF)
                word = tl.where(worth == worth, word, -1)
                there = (row < SETS)[:, None] & (number < numbers)[None, :]
                tl.store(target[:, None] + number[None, :], word, mask=there)
