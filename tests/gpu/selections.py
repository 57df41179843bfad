"""Choices, attention to them and to entries by Triton, interpreted on the processor, beside the native operations.

Run with TRITON_INTERPRET=1. Arguments are names of cases, none for all. Prints a JSON object: for each case how many
tokens have other choices, and the largest difference of outputs as a share of the largest value, over several steps.
What scores are made of are small whole numbers, so that they are exact, many are equal, and choices must be the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.files.codecs import align
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.native_mixers import NativeMixers
from engine.program.device.triton_mixers import TritonMixers
from engine.program.ir import Buffer, Cache, Op, Program
from tests.gpu.interpreted import MIB, InterpretingDriver, load
from tests.gpu.mixing import prepared
from tests.gpu.paged_attention import batch_of

ROOM = 36  # tokens of a step: more than words have room for at a time
PAGES = 24


Steps = Sequence[list[tuple[int, int]]]
"""For each step (position of the first token, tokens) of its two sequences."""
STEPS: Steps = ([(0, 33), (0, 3)], [(33, 1), (3, 26)], [(34, 20), (29, 1)], [(54, 1), (30, 1)])
FEW: Steps = ([(0, 15), (0, 2)], [(15, 1), (2, 2)], [(16, 2), (4, 1)])


@dataclass(frozen=True)
class Case:
    """An indexer (`top_k` 0: none) and attention: to positions, or with a `window` to it and to entries beyond."""

    top_k: int
    index_heads: int = 3
    index_dim: int = 24
    weighted: bool = True
    block: int = 1
    local: int = 0
    heads: int = 4
    kv_heads: int = 1
    k_dim: int = 40
    v_dim: int = 0  # latent: the first half of keys, or all of them beside a window
    window: int = 0
    every: int = 1  # tokens of an entry
    steps: Steps = STEPS

    @property
    def sets(self) -> int:
        return 1 if self.weighted else self.index_heads

    @property
    def widths(self) -> Mapping[str, int]:
        """Of the buffers that a step fills."""
        index = {"iq": self.index_heads * self.index_dim, "ik": self.index_dim, "iw": self.index_heads}
        attention = {"q": self.heads * self.k_dim, "k": self.kv_heads * self.k_dim, "v": self.kv_heads * self.v_dim}
        widths = (index if self.top_k else {}) | attention | ({"e": self.k_dim} if self.every > 1 else {})
        return {name: width for name, width in widths.items() if width}


CASES = {
    "a few tokens": Case(top_k=3, window=6, every=2, steps=FEW),
    "positions": Case(top_k=7),
    "many positions of many heads": Case(top_k=21, index_heads=20, index_dim=72, heads=20, k_dim=72),
    "blocks of latent positions": Case(top_k=3, block=5, local=1),
    "blocks for heads": Case(top_k=2, weighted=False, block=16, local=1, index_heads=2, kv_heads=2, heads=6, v_dim=24),
    "chosen entries": Case(top_k=3, window=20, every=4),
    "all entries": Case(top_k=0, window=20, every=2, heads=18),
    "entries of two pages": Case(top_k=0, window=40, every=32),
    "a window alone": Case(top_k=0, window=20),
}


def program_of(case: Case) -> Program:
    out = case.heads * (case.v_dim or (case.k_dim if case.window else case.k_dim // 2))
    buffers = {"x": Buffer(16), **{name: Buffer(width) for name, width in case.widths.items()}}
    buffers |= {"o": Buffer(out), "logits": Buffer(16, domain="row")}
    ops = [Op("embed", (), ("x",), ("embed",), {"scale": 1.0})]
    caches = [Cache(case.kv_heads, case.k_dim, case.v_dim, case.window)]
    if case.top_k:
        buffers["chosen"] = Buffer(case.sets * case.top_k, dtype="i32")
        index = {
            "heads": case.index_heads,
            "k_dim": case.index_dim,
            "top_k": case.top_k,
            "local": case.local,
            "tail": False,
        }
        index |= {"cache": len(caches), "block": case.block, "tail": False}
        ops.append(Op("choose", ("iq", "ik", "iw") if case.weighted else ("iq", "ik"), ("chosen",), (), index))
        caches.append(Cache(1, case.index_dim, 0, every=case.every))
    chosen = "chosen" if case.top_k else ""
    attends: dict[str, Any] = {"cache": 0, "heads": case.heads, "scale": case.k_dim**-0.5, "window": case.window}
    if case.window:
        attends |= {"dim": case.k_dim, "entries": len(caches) if case.every > 1 else -1}
        reads = ("q", "k", "e" if case.every > 1 else "", chosen)
        ops.append(Op("compressed_attention", reads, ("o",), ("sinks",), attends))
        caches.extend([Cache(1, case.k_dim, 0, every=case.every)] if case.every > 1 else [])
    else:
        attends |= {"kv_heads": case.kv_heads, "k_dim": case.k_dim, "v_dim": out // case.heads, "chunk": 0}
        attends |= {"softcap": 0.0, "sets": case.sets, "block": case.block}
        ops.append(Op("attention", ("q", "k", "v" if case.v_dim else "", chosen), ("o",), ("",), attends))
    ops.append(Op("select", ("x",), ("logits",)))
    return Program(buffers, tuple(ops), tuple(caches), (), "logits", 16, "x", (len(ops),))


def weights_of(case: Case, random: np.random.Generator) -> dict[str, Tensor]:
    sinks = np.zeros(align(case.heads, 16), np.float32)
    sinks[: case.heads] = random.normal(size=case.heads)
    embed = np.zeros(16 * 16, np.float32)
    return {
        "embed": Tensor("f32", 16, 16, memoryview(embed).cast("B").toreadonly()),
        "sinks": Tensor("f32", 1, case.heads, memoryview(sinks).cast("B").toreadonly(), vector=True),
    }


def run(case: Case, seed: int) -> tuple[int, float]:
    random = np.random.default_rng(seed)
    program, weights = program_of(case), weights_of(case, random)
    pages: list[Any] = [random.permutation(PAGES)[: PAGES // 2].astype(np.int32)]
    pages.append(np.setdiff1d(np.arange(PAGES, dtype=np.int32), pages[0])[::-1].copy())
    driver = InterpretingDriver(256 * MIB, granularity=4096)
    buffers = DeviceBuffers(driver, program, ROOM, ROOM)
    settings = {"kv_dtype": "f16", "page_tokens": 16, "room": ContextRoom(PAGES, PAGES), "max_tokens": ROOM}
    both = (
        NativeMixers(driver, program, weights, buffers, **settings, threads=1),
        TritonMixers(driver, program, weights, buffers, load=load, **settings),
    )
    wrong, worst = 0, 0.0
    for parts in case.steps:
        batch = batch_of(parts, pages, case.window)
        count = len(batch.tokens)
        rows = {name: values_of(name, (count, width), random) for name, width in case.widths.items()}
        choices, outs = [], []
        for mixers in both:
            for name, values in rows.items():
                buffers.write(name, values)
            with prepared(driver, mixers, batch, ROOM) as (stream, extent):
                for index, op in enumerate(program.ops[1:-1], 1):
                    mixers.issue(stream, index, op, extent)
                driver.synchronise(stream)
            choices.append(buffers.read("chosen", count).view(np.int32) if case.top_k else np.zeros((count, 0)))
            outs.append(buffers.read("o", count))
        wrong += int((choices[0] != choices[1]).any(1).sum())
        worst = max(worst, float(np.abs(outs[1] - outs[0]).max() / np.abs(outs[0]).max()))
    return wrong, worst


def values_of(name: str, shape: tuple[int, int], random: np.random.Generator) -> Any:
    values = random.integers(-2, 3, shape) if name in ("iq", "ik", "iw") else random.normal(size=shape)
    return values.astype(np.float32)


def main() -> None:
    print(json.dumps({name: run(CASES[name], seed) for seed, name in enumerate(sys.argv[1:] or CASES)}))


if __name__ == "__main__":
    main()
