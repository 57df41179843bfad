"""Attention over pages as Triton kernels: append keys and values, attend in parts, merge the parts.

They follow docs/numerics.md in what they compute and not in its order of sums, so their results agree with the native
operation to a tolerance (`tests/gpu/test_paged_attention.py`) and not to the bit. A layer's cache is binary16, and a
page holds the keys of each kv head, then the values of each, padded to 16 dimensions, as the native cache does: values
by positions, keys by dimensions unless their first columns are the values. A cache may have an entry for every EVERY
tokens alone, which lies where the last of them would.

Triton compiles the functions of this file; nothing else may be imported into them.
"""

from __future__ import annotations

import triton
import triton.language as tl

PAGE_TOKENS = 16
TILE = 32  # entries that a program looks at together
CHUNK = 64  # values of a key that are multiplied together
GROUP = 16  # query heads of a program: the least that a tensor core takes


@triton.jit
def append_rows(
    rows,
    cache,
    pages,
    first_pages,
    positions,
    live,
    row_stride,
    page_values,
    base,
    head_values,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PLACE: tl.constexpr,
    COLUMN: tl.constexpr,
    BLOCK: tl.constexpr,
    EVERY: tl.constexpr,
):
    """Writes the keys (or values) of one token and kv head to its place in the cache; grid (tokens, kv heads).

    Entries lie PLACE values apart, dimensions COLUMN. A token that completes no entry writes none.
    """
    token = tl.program_id(0)
    if token < tl.load(live):
        position = tl.load(positions + token)
        if (position + 1) % EVERY == 0:
            head = tl.program_id(1)
            page = tl.load(pages + tl.load(first_pages + token) + position // 16)
            column = tl.arange(0, BLOCK)
            value = tl.load(rows + token.to(tl.int64) * row_stride + head * DIM + column, mask=column < DIM, other=0.0)
            place = position % 16 // EVERY * PLACE
            target = cache + page.to(tl.int64) * page_values + base + head * head_values + place
            tl.store(target + column * COLUMN, value.to(tl.float16), mask=column < PADDED)


@triton.jit
def attend_parts(
    queries,
    cache,
    pages,
    first_pages,
    positions,
    live,
    chosen,
    part_sums,
    part_weights,
    query_stride,
    chosen_stride,
    page_values,
    key_values,
    value_base,
    value_values,
    scale,
    softcap,
    window,
    chunk,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    K_PLACE: tl.constexpr,
    K_COLUMN: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    V_BLOCK: tl.constexpr,
    EVERY: tl.constexpr,
    TOP_K: tl.constexpr,
    SETS: tl.constexpr,
    RUN: tl.constexpr,
    FIRST_PART: tl.constexpr,
    PARTS: tl.constexpr,
    CAPPED: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Softmax of some query heads of one token over some tiles of the entries that it sees, not yet divided.

    grid (tokens, kv heads * groups of GROUP query heads, parts): part p of n takes every n-th tile from tile p on, and
    is part FIRST_PART + p of PARTS. `part_weights` takes the maximum and the sum of a head and part, `part_sums` its
    weighted values; HEADS are query heads of a kv head. With TOP_K a token sees what `chosen` has for it: for each of
    SETS sets of kv heads the numbers of up to TOP_K runs of RUN entries, ascending, -1 where there are no more.
    """
    token = tl.program_id(0)
    groups: tl.constexpr = (HEADS + GROUP - 1) // GROUP
    head = tl.program_id(1) // groups
    part = tl.program_id(2)
    if token < tl.load(live):
        member = tl.program_id(1) % groups * GROUP + tl.arange(0, GROUP)
        here = member < HEADS
        position = tl.load(positions + token)
        table = pages + tl.load(first_pages + token)
        begin = 0
        end = (position + 1) // EVERY
        if window > 0:
            begin = tl.maximum(end - window, 0)
        if chunk > 0:
            begin = tl.maximum(begin, position - position % chunk)
        if TOP_K > 0:  # from here on entries are counted in the selection; its last run may end early
            picks = chosen + token.to(tl.int64) * chosen_stride + head // (KV_HEADS // SETS) * TOP_K
            runs = tl.minimum((end + RUN - 1) // RUN, TOP_K)
            last = tl.load(picks + runs - 1, mask=runs > 0, other=0)
            end = (runs - 1) * RUN + tl.minimum(end - last * RUN, RUN)
        query = queries + token.to(tl.int64) * query_stride + (head * HEADS + member) * K_DIM
        largest = tl.full((GROUP,), float("-inf"), tl.float32)
        total = tl.zeros((GROUP,), tl.float32)
        sums = tl.zeros((GROUP, V_BLOCK), tl.float32)
        column = tl.arange(0, V_BLOCK)
        step = tl.arange(0, CHUNK)
        for tile in range(begin // TILE + part, (end + TILE - 1) // TILE, tl.num_programs(2)):
            entry = tile * TILE + tl.arange(0, TILE)
            seen = (entry >= begin) & (entry < end)
            if TOP_K > 0:
                entry = tl.load(picks + entry // RUN, mask=seen, other=0) * RUN + entry % RUN
            place = entry * EVERY + (EVERY - 1)
            page = tl.load(table + place // 16, mask=seen, other=0).to(tl.int64) * page_values
            slot = place % 16 // EVERY
            key = cache + page + head * key_values + slot * K_PLACE
            scores = tl.zeros((GROUP, TILE), tl.float32)
            for first in range(0, K_DIM, CHUNK):
                wanted = first + step < K_DIM
                q = tl.load(query[:, None] + first + step[None, :], mask=here[:, None] & wanted[None, :], other=0.0)
                column_of_key = (first + step) * K_COLUMN
                k = tl.load(key[None, :] + column_of_key[:, None], mask=seen[None, :] & wanted[:, None], other=0.0)
                scores += tl.dot(q, k.to(tl.float32), input_precision="ieee")
            scores *= scale
            if CAPPED:
                scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * (scores / softcap))) - 1.0)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(largest - higher)
            value = cache + page + value_base + head * value_values + slot * V_PADDED
            v = tl.load(value[:, None] + column[None, :], mask=seen[:, None] & (column < V_DIM)[None, :], other=0.0).to(
                tl.float32
            )
            sums = sums * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
            total = total * shrink + tl.sum(weights, 1)
            largest = higher
        row = (token.to(tl.int64) * KV_HEADS * HEADS + head * HEADS + member) * PARTS + FIRST_PART + part
        tl.store(part_weights + 2 * row, largest, mask=here)
        tl.store(part_weights + 2 * row + 1, total, mask=here)
        tl.store(
            part_sums + row[:, None] * V_DIM + column[None, :], sums, mask=here[:, None] & (column < V_DIM)[None, :]
        )


@triton.jit
def merge_parts(
    part_sums,
    part_weights,
    sinks,
    live,
    out,
    out_stride,
    HEADS: tl.constexpr,
    V_DIM: tl.constexpr,
    V_BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Adds the parts of one token and query head, joins the head's sink, and divides; grid (tokens, query heads)."""
    token = tl.program_id(0)
    if token < tl.load(live):
        head = tl.program_id(1)
        row = (token.to(tl.int64) * HEADS + head) * PARTS
        column = tl.arange(0, V_BLOCK)
        largest = tl.load(part_weights + 2 * row)
        for part in range(1, PARTS):
            largest = tl.maximum(largest, tl.load(part_weights + 2 * (row + part)))
        if HAS_SINKS:
            sink = tl.load(sinks + head)
            largest = tl.maximum(largest, sink)
        total = 0.0
        sums = tl.zeros((V_BLOCK,), tl.float32)
        for part in range(0, PARTS):
            share = tl.exp(tl.load(part_weights + 2 * (row + part)) - largest)
            total += tl.load(part_weights + 2 * (row + part) + 1) * share
            sums += tl.load(part_sums + (row + part) * V_DIM + column, mask=column < V_DIM, other=0.0) * share
        if HAS_SINKS:
            total += tl.exp(sink - largest)
        tl.store(out + token.to(tl.int64) * out_stride + head * V_DIM + column, sums / total, mask=column < V_DIM)
