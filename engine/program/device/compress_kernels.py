"""The recurrence that makes one entry of several tokens, as a Triton kernel. docs/design.md says what it means.

It finds its sequences, their states and its saves as recurrent_kernels.py says, and agrees with the native operation as
those do.

Triton compiles the functions of this file; nothing else may be imported into them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_mean(place, dim, known):
    """A mean under way: the largest gate, the sum of exponentials below it, and that of values weighted by them."""
    largest = tl.load(place, mask=known, other=float("-inf"))
    return largest, tl.load(place + dim, mask=known, other=0.0), tl.load(place + 2 * dim, mask=known, other=0.0)


@triton.jit
def store_mean(place, dim, here, largest, total, values):
    """A mean under way, to where `load_mean` reads it."""
    tl.store(place, largest, mask=here)
    tl.store(place + dim, total, mask=here)
    tl.store(place + 2 * dim, values, mask=here)


@triton.jit
def taken(largest, total, values, gate, value):
    """A mean under way with one value more."""
    most = tl.maximum(largest, gate)
    kept = tl.exp(largest - most)
    own = tl.exp(gate - most)
    return most, total * kept + own, values * kept + own * value


@triton.jit
def compress(
    kv,
    gate,
    entry,
    bias,
    positions,
    states,
    starts,
    slots,
    fresh,
    saves,
    sequences,
    kv_stride,
    gate_stride,
    entry_stride,
    slot_values,
    dim,
    EVERY: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some channels of the entries of sequences; grid (any number, blocks of BLOCK channels).

    A state holds the mean under way of the entry that a token belongs to and, where they OVERLAP, that of the next
    entry, of which a token's first `dim` values are. Rows of tokens that complete no entry are 0.
    """
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = channel < dim
    own = dim * OVERLAP  # a token's values for its own entry begin there
    for sequence in range(tl.program_id(0), tl.load(sequences), tl.num_programs(0)):
        state = states + tl.load(slots + sequence).to(tl.int64) * slot_values + channel
        is_old = 1 - tl.load(fresh + sequence)
        known = channel < is_old * dim
        largest, total, values = load_mean(state, dim, known)
        ahead_largest, ahead_total, ahead_values = load_mean(state + 3 * own, dim, known)
        for step in range(tl.load(starts + sequence), tl.load(starts + sequence + 1)):
            token = tl.cast(step, tl.int64)
            place = tl.load(positions + token) % EVERY
            if place == 0:
                if OVERLAP:
                    largest, total, values = ahead_largest, ahead_total, ahead_values
                else:
                    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
                    total = tl.zeros((BLOCK,), tl.float32)
                    values = tl.zeros((BLOCK,), tl.float32)
                ahead_largest = tl.full((BLOCK,), float("-inf"), tl.float32)
                ahead_total = tl.zeros((BLOCK,), tl.float32)
                ahead_values = tl.zeros((BLOCK,), tl.float32)
            kv_row = kv + token * kv_stride + channel
            gate_row = gate + token * gate_stride + channel
            shift = bias + place * (1 + OVERLAP) * dim + channel
            weight = tl.load(gate_row + own, mask=here, other=0.0) + tl.load(shift + own, mask=here, other=0.0)
            value = tl.load(kv_row + own, mask=here, other=0.0)
            largest, total, values = taken(largest, total, values, weight, value)
            if OVERLAP:
                weight = tl.load(gate_row, mask=here, other=0.0) + tl.load(shift, mask=here, other=0.0)
                value = tl.load(kv_row, mask=here, other=0.0)
                ahead_largest, ahead_total, ahead_values = taken(
                    ahead_largest, ahead_total, ahead_values, weight, value
                )
            done = tl.where(place == EVERY - 1, values / total, 0.0)
            tl.store(entry + token * entry_stride + channel, done, mask=here)
            save = tl.load(saves + token)
            if save >= 0:
                saved = states + save.to(tl.int64) * slot_values + channel
                store_mean(saved, dim, here, largest, total, values)
                if OVERLAP:
                    store_mean(saved + 3 * dim, dim, here, ahead_largest, ahead_total, ahead_values)
        store_mean(state, dim, here, largest, total, values)
        if OVERLAP:
            store_mean(state + 3 * dim, dim, here, ahead_largest, ahead_total, ahead_values)
