"""Triton's attention, interpreted on the processor, beside the native operation. Run with TRITON_INTERPRET=1.

Arguments are names of cases, none for all. Prints a
JSON object: for each case the largest difference as a share of the largest value, over several steps.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import Cache, Op, Program
from tests.gpu.interpreted import native_and_triton
from tests.gpu.mixing import mix, program_with, weights_with

ROOM = 36  # tokens of a step
PAGES = 24


@dataclass(frozen=True)
class Case:
    """One attention operation."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    latent: bool = False  # values are the first columns of the keys
    window: int = 0
    chunk: int = 0
    reach: int = 0
    softcap: float = 0.0
    sinks: bool = False


CASES = {
    "latent": Case(20, 1, 72, 64, latent=True),
    "a window": Case(8, 2, 64, 64, window=40),
    "pages of a window, an odd head": Case(6, 2, 80, 80, window=40, reach=40),
    "chunks, a kv head a head": Case(3, 3, 16, 16, chunk=24, reach=24),
    "softcap, many heads a kv head": Case(40, 2, 32, 32, softcap=5.0),
    "sinks, a ragged head": Case(6, 2, 10, 10, sinks=True),
    "all of them": Case(18, 1, 48, 48, window=70, reach=70, softcap=3.0, sinks=True),
}


def program_of(case: Case) -> Program:
    widths = {"q": case.heads * case.k_dim, "k": case.kv_heads * case.k_dim, "o": case.heads * case.v_dim}
    widths |= {} if case.latent else {"v": case.kv_heads * case.v_dim}
    attention = Op(
        "attention",
        ("q", "k") if case.latent else ("q", "k", "v"),
        ("o",),
        ("sinks" if case.sinks else "",),
        {
            "cache": 0, "heads": case.heads, "kv_heads": case.kv_heads, "k_dim": case.k_dim, "v_dim": case.v_dim,
            "scale": case.k_dim**-0.5, "window": case.window, "chunk": case.chunk, "softcap": case.softcap,
        },
    )  # fmt: skip
    cache = Cache(case.kv_heads, case.k_dim, 0 if case.latent else case.v_dim, case.reach)
    return program_with(attention, widths, [cache])


STEPS = ([(0, 30), (0, 3)], [(30, 1), (3, 26)], [(31, 20), (29, 1)], [(51, 1), (30, 1)])
"""For each step (position of the first token, tokens) of its two sequences."""


def run(case: Case, seed: int) -> float:
    random = np.random.default_rng(seed)
    program, weights = program_of(case), weights_with({"sinks": case.heads}, random)
    pages = pages_of_two(random)
    driver, buffers, both = native_and_triton(program, weights, ContextRoom(PAGES, PAGES), ROOM)
    worst = 0.0
    for parts in STEPS:
        batch = batch_of(parts, pages, case.reach)
        shapes = {name: (len(batch.tokens), program.buffers[name].width) for name in program.ops[1].reads}
        rows = {name: random.normal(size=shape) for name, shape in shapes.items()}
        outs = []
        for attention in both:
            for name, values in rows.items():
                buffers.write(name, values.astype(np.float32))
            outs.append(mix(driver, program, buffers, attention, batch, ROOM, "o"))
        worst = max(worst, float(np.abs(outs[1] - outs[0]).max() / np.abs(outs[0]).max()))
    kind = "window" if case.reach else "page"
    for page in pages[1][: (STEPS[-1][1][0] + 1) // 16]:  # those that the last steps have filled
        assert np.array_equal(*(mixers.read_block(kind, int(page)) for mixers in both)), "pages differ in layout"
    return worst


def pages_of_two(random: np.random.Generator) -> list[Any]:
    """Pages of two sequences, in orders of no meaning."""
    first = random.permutation(PAGES)[: PAGES // 2].astype(np.int32)
    return [first, np.setdiff1d(np.arange(PAGES, dtype=np.int32), first)[::-1].copy()]


def batch_of(parts: list[tuple[int, int]], pages: list[Any], reach: int) -> Batch:
    counts = [count for _, count in parts]
    positions = np.concatenate([np.arange(start, start + count, dtype=np.int32) for start, count in parts])
    starts = np.cumsum([0, *counts]).astype(np.int32)
    windows = [table.copy() for table in pages]
    for (start, _), table in zip(parts, windows, strict=True):
        table[: max(0, start - reach + 1) // 16] = -1
    none = np.zeros(0, np.int32)
    return Batch(np.ones(starts[-1], np.int32), positions, starts, tuple(pages), none, tuple(windows))


def main() -> None:
    print(json.dumps({name: run(CASES[name], seed) for seed, name in enumerate(sys.argv[1:] or CASES)}))


if __name__ == "__main__":
    main()
