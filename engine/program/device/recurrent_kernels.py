"""Recurrent operations as Triton kernels: convolution, delta rule, state space. docs/design.md says what each means.

They follow docs/numerics.md in what they compute and not in its order of sums, so their results agree with the native
operations to a tolerance (`tests/gpu/test_recurrent_mixers.py`) and not to the bit. A state stays in registers from
the first token of its sequence to the last; saves are written on the way.

All kernels find their sequences in the same five arrays: sequence s owns the tokens `starts[s] .. starts[s + 1]` and
the state slot `slots[s]`, which it does not read where `fresh[s]`; after token t the state goes to slot `saves[t]` too,
unless that is negative. `states` is where the operation's state lies in slot 0, slots are `slot_values` apart. The
programs of the first axis share the sequences.

Triton compiles the functions of this file; nothing else may be imported into them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    x,
    y,
    weights,
    bias,
    states,
    starts,
    slots,
    fresh,
    saves,
    sequences,
    x_stride,
    y_stride,
    slot_values,
    channels,
    KERNEL: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """A causal convolution of every channel by itself; y may be x. grid (any number, blocks of BLOCK channels).

    The state holds the last KERNEL - 1 inputs, oldest first, [KERNEL - 1][channels]. Between two tiles of tokens it
    lies in memory: outputs may have taken the place of what it remembers.
    """
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = channel < channels
    row = tl.arange(0, TILE)
    for sequence in range(tl.program_id(0), tl.load(sequences), tl.num_programs(0)):
        start = tl.load(starts + sequence)
        end = tl.load(starts + sequence + 1)
        state = states + tl.load(slots + sequence).to(tl.int64) * slot_values + channel
        is_old = 1 - tl.load(fresh + sequence)
        for first in range(start, end, TILE):
            known = channels * tl.minimum(first - start + is_old, 1)  # channels whose inputs before `first` count
            token = first + row
            there = (token < end)[:, None] & here[None, :]
            kept = tl.load(saves + token, mask=token < end, other=-1)
            saved = states + kept.to(tl.int64)[:, None] * slot_values + channel[None, :]
            keep = (kept >= 0)[:, None] & here[None, :]
            source = x + token.to(tl.int64)[:, None] * x_stride + channel[None, :]
            sums = tl.zeros((TILE, BLOCK), tl.float32)
            if HAS_BIAS:
                sums += tl.load(bias + channel, mask=here, other=0.0)[None, :]
            for tap in tl.static_range(KERNEL):
                back = KERNEL - 1 - tap
                value = tl.load(source - back * x_stride, mask=there & (row >= back)[:, None], other=0.0)
                value += tl.load(
                    state[None, :] + (tap + row)[:, None] * channels,
                    mask=there & (channel < known)[None, :] & (row < back)[:, None],
                    other=0.0,
                )
                sums += tl.load(weights + channel * KERNEL + tap, mask=here, other=0.0)[None, :] * value
                if tap > 0:
                    tl.store(saved + (tap - 1) * channels, value, mask=keep)
            last = tl.minimum(first + TILE, end) - 1
            for tap in tl.static_range(1, KERNEL):
                back = KERNEL - 1 - tap
                within = tl.where(last - back >= first, channels, 0)
                value = tl.load(x + (last - back).to(tl.int64) * x_stride + channel, mask=channel < within, other=0.0)
                value += tl.load(state + (tap + last - first) * channels, mask=channel < known - within, other=0.0)
                tl.debug_barrier()
                tl.store(state + (tap - 1) * channels, value, mask=here)
            if SILU:
                sums = sums / (1.0 + tl.exp(-sums))
            tl.debug_barrier()
            tl.store(y + token.to(tl.int64)[:, None] * y_stride + channel[None, :], sums, mask=there)
            tl.debug_barrier()


@triton.jit
def delta_rule(
    q,
    k,
    v,
    g,
    b,
    out,
    states,
    starts,
    slots,
    fresh,
    saves,
    sequences,
    q_stride,
    k_stride,
    v_stride,
    g_stride,
    b_stride,
    out_stride,
    slot_values,
    scale,
    slope,
    HEADS: tl.constexpr,
    SHARED_BY: tl.constexpr,
    K_DIM: tl.constexpr,
    K_BLOCK: tl.constexpr,
    V_DIM: tl.constexpr,
    V_BLOCK: tl.constexpr,
    A_CHANNEL: tl.constexpr,
    CORRECTS: tl.constexpr,
):
    """Some columns of the state of one value head, [K_DIM][V_DIM] a head; grid (any number, heads, blocks of columns).

    SHARED_BY value heads have a key head in common; with A_CHANNEL there is a decay for each key channel.
    Unless it CORRECTS, values are learned as they are, and head h of HEADS decays by -slope * 2^(-8 (h + 1) / HEADS).
    """
    head = tl.program_id(1)
    row = tl.arange(0, K_BLOCK)
    column = tl.program_id(2) * V_BLOCK + tl.arange(0, V_BLOCK)
    key = head // SHARED_BY * K_DIM + row
    value = head * V_DIM + column
    in_key = row < K_DIM
    in_value = column < V_DIM
    place = states + head * K_DIM * V_DIM + row[:, None] * V_DIM + column[None, :]
    inside = in_key[:, None] & in_value[None, :]
    for sequence in range(tl.program_id(0), tl.load(sequences), tl.num_programs(0)):
        slot = tl.load(slots + sequence).to(tl.int64) * slot_values
        is_old = 1 - tl.load(fresh + sequence)
        state = tl.load(place + slot, mask=inside & (row < is_old * K_DIM)[:, None], other=0.0)
        for step in range(tl.load(starts + sequence), tl.load(starts + sequence + 1)):
            token = tl.cast(step, tl.int64)
            keys = tl.load(k + token * k_stride + key, mask=in_key, other=0.0)
            queries = tl.load(q + token * q_stride + key, mask=in_key, other=0.0)
            values = tl.load(v + token * v_stride + value, mask=in_value, other=0.0)
            if not CORRECTS:
                state *= tl.exp(-slope * tl.exp2(-8.0 * (head + 1) / HEADS))
            elif A_CHANNEL:
                decay = tl.load(g + token * g_stride + head * K_DIM + row, mask=in_key, other=0.0)
                state *= tl.exp(decay)[:, None]
            else:
                state *= tl.exp(tl.load(g + token * g_stride + head))
            change = values
            if CORRECTS:
                beta = 1.0 / (1.0 + tl.exp(-tl.load(b + token * b_stride + head)))
                change = beta * (values - tl.sum(state * keys[:, None], 0))
            state += keys[:, None] * change[None, :]
            read = scale * tl.sum(state * queries[:, None], 0)
            tl.store(out + token * out_stride + value, read, mask=in_value)
            save = tl.load(saves + token)
            if save >= 0:
                tl.store(place + save.to(tl.int64) * slot_values, state, mask=inside)
        tl.store(place + slot, state, mask=inside)


@triton.jit
def softplus(x):
    """log(1 + e^x): the larger of x and 0, and 2 atanh(e / (2 + e)) of e = e^-|x|, a series that ends at s^15."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    t = s * s
    p = 0.0666666667
    p = p * t + 0.0769230769
    p = p * t + 0.0909090909
    p = p * t + 0.111111111
    p = p * t + 0.142857143
    p = p * t + 0.2
    p = p * t + 0.333333333
    p = p * t + 1.0
    return tl.maximum(x, 0.0) + 2.0 * s * p


@triton.jit
def state_space(
    x,
    dt,
    b,
    c,
    y,
    a_log,
    d,
    dt_bias,
    states,
    starts,
    slots,
    fresh,
    saves,
    sequences,
    x_stride,
    dt_stride,
    b_stride,
    c_stride,
    y_stride,
    slot_values,
    dt_min,
    dt_max,
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    A_CHANNEL: tl.constexpr,
):
    """Some rows (head, p) of one group, [STATE_DIM] values each; grid (any number, groups, blocks of ROWS rows).

    With A_CHANNEL `a_log` has a value for each row and column (Mamba-1), else one a head. dt_max 0: no upper bound.
    """
    inner = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    group = tl.program_id(1)
    row = group * GROUP_ROWS + inner
    head = row // HEAD_DIM
    in_row = inner < GROUP_ROWS
    in_column = column < STATE_DIM
    inside = in_row[:, None] & in_column[None, :]
    at = row[:, None] * STATE_DIM + column[None, :]
    if A_CHANNEL:
        rate = -tl.exp(tl.load(a_log + at, mask=inside, other=0.0))
    else:
        rate = -tl.exp(tl.load(a_log + head, mask=in_row, other=0.0))[:, None]
    skip = tl.load(d + head, mask=in_row, other=0.0)
    shift = tl.load(dt_bias + head, mask=in_row, other=0.0)
    for sequence in range(tl.program_id(0), tl.load(sequences), tl.num_programs(0)):
        slot = tl.load(slots + sequence).to(tl.int64) * slot_values
        is_old = 1 - tl.load(fresh + sequence)
        state = tl.load(states + slot + at, mask=inside & (column < is_old * STATE_DIM)[None, :], other=0.0)
        for step in range(tl.load(starts + sequence), tl.load(starts + sequence + 1)):
            token = tl.cast(step, tl.int64)
            values = tl.load(x + token * x_stride + row, mask=in_row, other=0.0)
            length = softplus(tl.load(dt + token * dt_stride + head, mask=in_row, other=0.0) + shift)
            length = tl.where(length < dt_min, dt_min, length)  # what is not a number stays so
            length = tl.where((dt_max > 0.0) & (length > dt_max), dt_max, length)
            writes = tl.load(b + token * b_stride + group * STATE_DIM + column, mask=in_column, other=0.0)
            reads = tl.load(c + token * c_stride + group * STATE_DIM + column, mask=in_column, other=0.0)
            state = tl.exp(length[:, None] * rate) * state + (length * values)[:, None] * writes[None, :]
            result = tl.sum(state * reads[None, :], 1) + skip * values
            tl.store(y + token * y_stride + row, result, mask=in_row)
            save = tl.load(saves + token)
            if save >= 0:
                tl.store(states + save.to(tl.int64) * slot_values + at, state, mask=inside)
        tl.store(states + slot + at, state, mask=inside)
