"""Decoding deep in a context: attention alone, beside a loop that reads as many bytes of keys and values.

`python -m tests.bench.attention`: for each shape as many layers as fill `--bytes` with the keys and values of `--depth`
positions, in binary16; one token is decoded after them, in turns with the read loop, on equally many threads. The bound
is the loop's time. A prompt's rate is that of one layer over `--prompt` tokens, in giga multiply-adds a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import _native
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import KV_VALUE_BYTES, Buffer, Cache, Op, Program
from engine.program.native import NativeExecutor
from tests.bench.beside import Rates, beside
from tests.unit.native_model import RandomModel

PAGE = 16
STEP = 512  # tokens


@dataclass(frozen=True)
class Shape:
    """Of one attention operation; `v_dim` 0: values are the first `latent` columns of the keys."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    latent: int = 0

    @property
    def cache(self) -> Cache:
        """What it keeps of a token."""
        return Cache(self.kv_heads, self.k_dim, self.v_dim)


SHAPES = {
    "16 heads, 4 kv heads of 64": Shape(16, 4, 64, 64),
    "32 heads, 4 kv heads of 128": Shape(32, 4, 128, 128),
    "64 heads, 8 kv heads of 64": Shape(64, 8, 64, 64),
    "latent, 16 heads of 576": Shape(16, 1, 576, 0, 512),
}


class Layers:
    """Attention operations over the same buffers, each with a cache of its own."""

    def __init__(self, shape: Shape, layers: int, positions: int, threads: int, isa: str) -> None:
        model = RandomModel()
        v_dim = shape.v_dim or shape.latent
        widths = {"q": shape.heads * shape.k_dim, "k": shape.kv_heads * shape.k_dim, "o": shape.heads * v_dim}
        if shape.v_dim:
            widths["v"] = shape.kv_heads * v_dim
        buffers = {"x": model.buffers["x"], **{name: Buffer(width) for name, width in widths.items()}}
        embed = model.ops[0]
        attrs: dict[str, int | float] = {
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "k_dim": shape.k_dim,
            "v_dim": v_dim,
        }
        attrs |= {"scale": shape.k_dim**-0.5, "window": 0, "chunk": 0, "softcap": 0.0}
        reads = tuple(name for name in ("q", "k", "v") if name in widths)
        attend = [Op("attention", reads, ("o",), ("",), {"cache": i, **attrs}) for i in range(layers)]
        buffers["r"] = Buffer(model.hidden, domain="row")
        ops = (embed, *attend, Op("select", ("x",), ("r",)))
        caches = (shape.cache,) * layers
        self.pages = np.arange(-(-positions // PAGE), dtype=np.int32)
        program = Program(buffers, ops, caches, (), "r", model.hidden, "x", (len(ops) - 1,))
        self.executor = NativeExecutor(
            program,
            model.dense,
            (),
            threads=threads,
            isa=isa,
            room=ContextRoom(len(self.pages)),
            max_tokens=STEP,
        )
        random = np.random.default_rng(0)
        for name in reads:
            rows = random.standard_normal((STEP, widths[name])).astype(np.float32)
            self.executor._native.write_buffer(name, rows)

    def seconds(self, start: int, count: int) -> float:
        """Wall time of a step of `count` tokens from position `start` on."""
        ids = np.zeros(count, np.int32)
        positions = np.arange(start, start + count, dtype=np.int32)
        batch = Batch(ids, positions, np.array([0, count], np.int32), (self.pages,), ids[:0])
        began = time.perf_counter()
        self.executor.step(batch)
        return time.perf_counter() - began

    def fill(self, positions: int) -> float:
        """Wall time of a prompt."""
        return sum(self.seconds(start, min(STEP, positions - start)) for start in range(0, positions, STEP))


def decode(shape: Shape, options: argparse.Namespace) -> Rates:
    """Rates of one token, in turns with the loop."""
    a_layer = options.depth * shape.cache.bytes_per_token(KV_VALUE_BYTES)
    layers = max(1, options.bytes // a_layer)
    rig = Layers(shape, layers, options.depth + 1, options.threads, options.isa)
    rig.fill(options.depth)
    probe, data = _native.Probe(options.threads), np.ones(layers * a_layer, np.uint8)

    def loop() -> float:
        read, taken = probe.read(data)
        return taken * data.nbytes / read

    return beside(loop, lambda: rig.seconds(options.depth, 1), data.nbytes, options.rounds)


def prompt(shape: Shape, options: argparse.Namespace) -> float:
    """Giga multiply-adds a second of one layer's prompt: those of what is seen, for scores and for sums."""
    rig = Layers(shape, 1, options.prompt, options.threads, options.isa)
    rig.fill(STEP)
    pairs: float = options.prompt * (options.prompt + 1) / 2  # of a query and a key that it sees
    products = shape.heads * (shape.k_dim + (shape.v_dim or shape.latent)) * pairs
    return 1e-9 * products / min(rig.fill(options.prompt) for _ in range(3))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--bytes", type=int, default=256 * 2**20, help="of keys and values that a token reads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="", help="instruction set, the fastest by default")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    print("| attention | GB/s | loop | time / loop's | range | prompt, GMAC/s |\n|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        rates = decode(shape, options)
        print(
            f"| {name} | {rates.ours:.1f} | {rates.loop:.1f} | {rates.ratio:.2f} | {rates.low:.2f} to {rates.high:.2f} "
            f"| {prompt(shape, options):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
