"""Choices, attention to them and to entries by Triton, interpreted on the processor, beside the native operations.

Run with TRITON_INTERPRET=1. Arguments are names of cases, none for all. Prints a JSON object: for each case how many
tokens have other choices, and the largest difference of outputs as a share of the largest value, over several steps.
What scores are made of are small whole numbers, so that they are exact, many are equal, and choices must be the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.memory.blocks import ContextRoom
from tests.gpu.interpreted import native_and_triton
from tests.gpu.mixing import prepared
from tests.gpu.paged_attention import PAGES, batch_of, pages_of_two
from tests.unit.selection_rig import Selection

ROOM = 36  # tokens of a step: more than words have room for at a time

Steps = Sequence[list[tuple[int, int]]]
"""For each step (position of the first token, tokens) of its two sequences."""
STEPS: Steps = ([(0, 33), (0, 3)], [(33, 1), (3, 26)], [(34, 20), (29, 1)], [(54, 1), (30, 1)])
FEW: Steps = ([(0, 15), (0, 2)], [(15, 1), (2, 2)], [(16, 2), (4, 1)])

CASES = {
    "a few tokens": Selection(top_k=3, window=6, every=2),
    "many positions of many heads": Selection(top_k=21, index_heads=20, index_dim=72, heads=20, k_dim=72),
    "blocks of latent positions": Selection(top_k=3, block=5, local=1),
    "blocks for heads": Selection(
        top_k=2, weighted=False, block=16, local=1, index_heads=2, kv_heads=2, heads=6, v_dim=24
    ),
    "chosen entries": Selection(top_k=3, window=20, every=4),
    "all entries": Selection(top_k=0, window=20, every=2, heads=18),
    "entries of two pages": Selection(top_k=0, window=40, every=32),
    "a window alone": Selection(top_k=0, window=20),
}


def run(case: Selection, steps: Steps, seed: int) -> tuple[int, float]:
    random = np.random.default_rng(seed)
    program, weights = case.program(), case.dense()
    pages = pages_of_two(random)
    driver, buffers, both = native_and_triton(program, weights, ContextRoom(PAGES, PAGES), ROOM)
    wrong, worst = 0, 0.0
    for parts in steps:
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
    found = {}
    for seed, name in enumerate(sys.argv[1:] or CASES):
        found[name] = run(CASES[name], FEW if name == "a few tokens" else STEPS, seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
