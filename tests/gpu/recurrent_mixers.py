"""Triton's recurrences, interpreted on the processor, beside the native operations. Run with TRITON_INTERPRET=1.

Arguments are names of cases, none for all. Prints a JSON object: for each case the largest differences of outputs and
of states, saved ones among them, as shares of the largest value, over several steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import Attr, Op, Program, State
from tests.gpu.interpreted import native_and_triton
from tests.gpu.mixing import mix, program_with, weights_with

ROOM = 24  # tokens of a step
SLOTS = 7


@dataclass(frozen=True)
class Case:
    """One recurrent operation."""

    kind: str
    reads: Mapping[str, int]  # buffers and their widths
    out: int
    state: int
    weights: Mapping[str, int]  # vectors and their lengths; 0: absent
    attrs: Mapping[str, Attr] = field(default_factory=dict)


def conv(channels: int, kernel: int, bias: bool, activation: str) -> Case:
    return Case(
        "conv",
        {"x": channels},
        channels,
        channels * (kernel - 1),
        {"w": channels * kernel, "bias": channels * bias},
        {"channels": channels, "kernel": kernel, "activation": activation},
    )


def delta(key_heads: int, heads: int, k_dim: int, v_dim: int, channelwise: bool) -> Case:
    keys, values = key_heads * k_dim, heads * v_dim
    decays = heads * (k_dim if channelwise else 1)
    return Case(
        "delta_rule",
        {"q": keys, "k": keys, "v": values, "g": decays, "b": heads},
        values,
        heads * k_dim * v_dim,
        {},
        {"key_heads": key_heads, "heads": heads, "k_dim": k_dim, "v_dim": v_dim, "scale": k_dim**-0.5},
    )


def linear(heads: int, k_dim: int, v_dim: int) -> Case:
    attrs = {"key_heads": heads, "heads": heads, "k_dim": k_dim, "v_dim": v_dim, "scale": 1.0, "slope": 0.7}
    reads = {"q": heads * k_dim, "k": heads * k_dim, "v": heads * v_dim}
    return Case("delta_rule", reads, heads * v_dim, heads * k_dim * v_dim, {}, attrs)


def compress(dim: int, every: int, *, overlap: bool) -> Case:
    values = dim * (1 + overlap)
    reads, weights = {"kv": values, "gate": values}, {"bias": every * values}
    return Case("compress", reads, dim, 3 * values, weights, {"every": every, "overlap": overlap})


def ssm(heads: int, head_dim: int, groups: int, state_dim: int, by_channel: bool, dt_max: float) -> Case:
    inner = heads * head_dim
    return Case(
        "ssm",
        {"x": inner, "dt": heads, "B": groups * state_dim, "C": groups * state_dim},
        inner,
        inner * state_dim,
        {"a_log": heads * (state_dim if by_channel else 1), "d": heads, "dt_bias": heads},
        {
            "heads": heads, "head_dim": head_dim, "groups": groups, "state_dim": state_dim,
            "dt_min": 0.01 if dt_max else 0.0, "dt_max": dt_max,
        },
    )  # fmt: skip


CASES = {
    "conv": conv(40, 4, True, "silu"),
    "conv of two": conv(130, 2, False, "none"),
    "long conv": conv(16, 9, True, "none"),
    "delta rule": delta(2, 4, 16, 32, False),
    "ragged delta rule": delta(1, 3, 10, 21, False),
    "delta rule a channel": delta(2, 2, 24, 16, True),
    "linear attention": linear(3, 12, 20),
    "entries": compress(40, 4, overlap=False),
    "entries that overlap": compress(24, 4, overlap=True),
    "heads": ssm(6, 5, 2, 12, False, 1.5),
    "channels": ssm(40, 1, 1, 16, True, 0.0),
}


def program_of(case: Case) -> Program:
    weights = tuple(name if length else "" for name, length in case.weights.items())
    op = Op(case.kind, tuple(case.reads), ("out",), weights, {"state": 0, **case.attrs})
    return program_with(op, {"out": case.out, **case.reads}, states=[State(case.state)])


STEPS = (
    ([(0, 0, 20), (1, 0, 2)], [(3, 4), (19, 5)]),
    ([(1, 2, 1), (0, 20, 1)], []),
    ([(0, 21, 1), (2, 0, 1), (1, 3, 17)], [(18, 6)]),
    ([(0, 0, 3)], [(0, 3), (2, 4)]),
)
"""For each step (sequence, position of the first token, tokens) of its parts, and (token, slot) of its saves."""


def run(case: Case, seed: int) -> tuple[float, float]:
    random = np.random.default_rng(seed)
    program, weights = program_of(case), weights_with(case.weights, random)
    driver, buffers, both = native_and_triton(program, weights, ContextRoom(states=SLOTS), ROOM)
    outs = states = 0.0
    for parts, saves in STEPS:
        batch = batch_of(parts, saves)
        rows = {name: values_of(name, (len(batch.tokens), width), random) for name, width in case.reads.items()}
        found = []
        for mixers in both:
            for name, values in rows.items():
                buffers.write(name, values)
            found.append(mix(driver, program, buffers, mixers, batch, ROOM, "out"))
        outs = max(outs, difference(found[1], found[0]))
        for slot in {*batch.states.tolist(), *(slot for _, slot in saves)}:
            blocks = [mixers.read_block("state", slot).view(np.float32) for mixers in both]
            states = max(states, difference(blocks[1], in_device_order(case, blocks[0])))
    return outs, states


def in_device_order(case: Case, block: Any) -> Any:
    """A native state as the device lays it out: native ones of channels come in blocks of sixteen channels."""
    if case.kind == "conv":
        channels, rows = case.attrs["channels"], case.attrs["kernel"] - 1
    elif case.kind == "ssm" and case.weights["a_log"] != case.attrs["heads"]:
        channels, rows = case.attrs["heads"], case.attrs["state_dim"]
    else:
        return block
    ends = range(16 * rows, channels * rows, 16 * rows)
    blocks = np.split(block[: channels * rows], ends)
    by_row = np.concatenate([part.reshape(rows, -1) for part in blocks], axis=1)
    ordered = block.copy()
    ordered[: channels * rows] = (by_row if case.kind == "conv" else by_row.T).ravel()
    return ordered


def values_of(name: str, shape: tuple[int, int], random: np.random.Generator) -> Any:
    values = random.normal(size=shape).astype(np.float32)
    return {"g": -np.abs(values), "dt": 4.0 * values}.get(name, values)


def difference(ours: Any, theirs: Any) -> float:
    far = float(np.abs(ours - theirs).max())
    return far / float(np.abs(theirs).max()) if far else 0.0  # a step may complete no entry: all is 0 then


def batch_of(parts: list[tuple[int, int, int]], saves: list[tuple[int, int]]) -> Batch:
    positions = [np.arange(start, start + count, dtype=np.int32) for _, start, count in parts]
    starts = np.cumsum([0, *(count for _, _, count in parts)]).astype(np.int32)
    return Batch(
        np.ones(starts[-1], np.int32),
        np.concatenate(positions),
        starts,
        tuple(np.zeros(0, np.int32) for _ in parts),
        np.zeros(0, np.int32),
        states=np.asarray([number for number, _, _ in parts], np.int32),
        saves=np.asarray(saves, np.int32).reshape(-1, 2),
    )


def main() -> None:
    print(json.dumps({name: run(CASES[name], seed) for seed, name in enumerate(sys.argv[1:] or CASES)}))


if __name__ == "__main__":
    main()
