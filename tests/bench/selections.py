"""Decoding deep in a context with an indexer: its choice, attention to what it chose, and attention to everything.

`python -m tests.bench.selections`: one layer of GLM-5's sizes, in binary16, one token after so many others, on one
thread; the least processor time of each operation, and the bytes of keys that it reads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import KV_VALUE_BYTES, Buffer, Cache, Op, Program
from engine.program.native import NativeExecutor, run_native
from tests.unit.native_model import RandomModel

PAGE = 16
HEADS, KEY, LATENT = 64, 576, 512
INDEX_HEADS, INDEX_KEY, TOP_K = 32, 128, 2048
CACHES = (Cache(1, INDEX_KEY, 0), Cache(1, KEY, 0))
WIDTHS = {"iq": INDEX_HEADS * INDEX_KEY, "ik": INDEX_KEY, "iw": INDEX_HEADS, "q": HEADS * KEY, "k": KEY}


class Layer:
    """A layer's choice and both kinds of attention, over a context of random keys."""

    def __init__(self, depth: int, isa: str) -> None:
        model = RandomModel()
        buffers = {"x": model.buffers["x"], **{name: Buffer(width) for name, width in WIDTHS.items()}}
        buffers |= {"chosen": Buffer(TOP_K, dtype="i32"), "o": Buffer(HEADS * LATENT)}
        buffers["r"] = Buffer(model.hidden, domain="row")
        index = {"cache": 0, "heads": INDEX_HEADS, "k_dim": INDEX_KEY, "top_k": TOP_K, "block": 1, "local": 0}
        index |= {"tail": False}
        attend: dict[str, int | float] = {"cache": 1, "heads": HEADS, "kv_heads": 1, "k_dim": KEY, "v_dim": LATENT}
        attend |= {"scale": KEY**-0.5, "window": 0, "chunk": 0, "softcap": 0.0, "sets": 1, "block": 1}
        ops = (
            model.ops[0],
            Op("choose", ("iq", "ik", "iw"), ("chosen",), (), index),
            Op("attention", ("q", "k", "", "chosen"), ("o",), ("",), attend),
            Op("attention", ("q", "k"), ("o",), ("",), attend),
            Op("select", ("x",), ("r",)),
        )
        program = Program(buffers, ops, CACHES, (), "r", model.hidden, "x", (len(ops) - 1,))
        pages = np.arange(depth // PAGE + 1, dtype=np.int32)
        room = ContextRoom(len(pages))
        self.executor = NativeExecutor(program, model.dense, (), threads=1, isa=isa, room=room, max_tokens=1)
        random = np.random.default_rng(0)
        values = self.executor.block_bytes["page"] // KV_VALUE_BYTES
        for page in pages:
            self.executor.write_block("page", page, random.standard_normal(values).astype(np.float16).view(np.uint8))
        for name, width in WIDTHS.items():
            self.executor._native.write_buffer(name, random.standard_normal((1, width)).astype(np.float32))
        one = np.zeros(1, np.int32)
        self.batch = Batch(one, one + np.int32(depth), np.array([0, 1], np.int32), (pages,), one[:0])

    def seconds(self, operation: int, rounds: int) -> float:
        """The least processor time of an operation, and of the way into the native module."""
        times = []
        for _ in range(rounds):
            began = time.process_time()
            run_native(self.executor._native, self.batch, self.batch.rows, operation, operation + 1)
            times.append(time.process_time() - began)
        return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row a depth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--isa", default="", help="instruction set, the fastest by default")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    print("| depth | choice, ms | MB | attention to it, ms | MB | attention to all, ms | MB |")
    print("|---|---|---|---|---|---|---|")
    for depth in options.depths:
        layer = Layer(depth, options.isa)
        sizes = [cache.bytes_per_token(KV_VALUE_BYTES) * 1e-6 for cache in CACHES]
        megabytes = (depth * sizes[0], min(depth, TOP_K) * sizes[1], depth * sizes[1])
        sides = zip((1, 2, 3), megabytes, strict=True)
        cells = (f"{1e3 * layer.seconds(op, options.rounds):.1f} | {size:.1f}" for op, size in sides)
        print(f"| {depth} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
