"""Programs that choose what attention looks at: inputs of a token come from a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import _native
from engine.files.codecs import align
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Executor, Floats, Ints
from engine.program.ir import Buffer, Cache, Op, Program
from engine.program.native import NativeExecutor
from engine.program.reference.executor import ReferenceExecutor
from tests.unit.native_model import DenseWeights

VOCAB, PAGE, SCALE = 400, 16, 0.3


@dataclass(frozen=True)
class Selection:
    """An indexer (`top_k` 0: none) and attention: to positions, or with a `window` to it and to entries beyond.

    `v_dim` 0: latent, values are the first half of keys, or all of them beside a window.
    """

    top_k: int
    index_heads: int = 3
    index_dim: int = 24
    weighted: bool = True
    block: int = 1
    local: int = 0
    heads: int = 4
    kv_heads: int = 1
    k_dim: int = 40
    v_dim: int = 0
    window: int = 0
    chosen: bool = True  # False: attention sees everything
    every: int = 1  # tokens of an entry; without a window they are there already
    tail: bool = False  # attention sees the tokens of chosen entries and of the one under way
    seed: int = 0
    whole: bool = False  # numbers alone that are whole: scores are exact, and many are equal

    @property
    def sets(self) -> int:
        return 1 if self.weighted else self.index_heads

    @property
    def value_dim(self) -> int:
        return self.v_dim or (self.k_dim if self.window else self.k_dim // 2)

    @property
    def widths(self) -> Mapping[str, int]:
        """Of a token's inputs."""
        index = {"iq": self.index_heads * self.index_dim, "ik": self.index_dim, "iw": self.index_heads}
        attention = {"q": self.heads * self.k_dim, "k": self.kv_heads * self.k_dim, "v": self.kv_heads * self.v_dim}
        entry = {"e": self.k_dim} if self.entries else {}
        return {name: width for name, width in ((index if self.top_k else {}) | attention | entry).items() if width}

    @property
    def entries(self) -> bool:
        """Whether attention is to entries, which it keeps, beside the window."""
        return self.window > 0 and self.every > 1

    @property
    def table(self) -> Floats:
        values = np.random.default_rng(self.seed).normal(size=(VOCAB, sum(self.widths.values())))
        return (np.rint(values) if self.whole else values).astype(np.float32)

    def program(self) -> Program:
        buffers, offset = {"x": Buffer(sum(self.widths.values()))}, 0
        for name, width in self.widths.items():
            buffers[name] = Buffer(width, base="x", offset=offset)
            offset += width
        out = self.heads * self.value_dim
        buffers["o"], buffers["out"] = Buffer(out), Buffer(out, domain="row")
        ops, caches = [Op("embed", (), ("x",), ("table",), {"scale": 1.0})], []
        if self.top_k:
            buffers["chosen"] = Buffer(self.sets * (self.top_k + self.tail), dtype="i32")
            ops.append(self._choose())
            caches.append(Cache(1, self.index_dim, 0, every=self.every))
        ops += [self._attend(len(caches)), Op("select", ("o",), ("out",))]
        caches.append(Cache(self.kv_heads, self.k_dim, self.v_dim, self.window))
        caches += [Cache(1, self.k_dim, 0, every=self.every)] if self.entries else []
        return Program(buffers, tuple(ops), tuple(caches), (), "out", out, "x", (len(ops) - 1,))

    def _choose(self) -> Op:
        index = {"cache": 0, "heads": self.index_heads, "k_dim": self.index_dim, "top_k": self.top_k}
        index |= {"block": self.block, "local": self.local, "tail": self.tail}
        keys = "ik" if self.every == 1 or self.window else ""
        return Op("choose", ("iq", keys, "iw" if self.weighted else ""), ("chosen",), (), index, 0)

    def _attend(self, cache: int) -> Op:
        chosen = "chosen" if self.top_k and self.chosen else ""
        attrs: dict[str, Any] = {"cache": cache, "heads": self.heads, "scale": SCALE, "window": self.window}
        if self.window:
            attrs |= {"dim": self.k_dim, "entries": cache + 1 if self.entries else -1}
            reads = ("q", "k", "e" if self.entries else "", chosen)
            return Op("compressed_attention", reads, ("o",), ("sinks",), attrs, 0)
        attrs |= {"kv_heads": self.kv_heads, "k_dim": self.k_dim, "v_dim": self.value_dim, "chunk": 0, "softcap": 0.0}
        attrs |= {"sets": self.sets, "block": self.every if self.tail else self.block}
        reads = ("q", "k", "v" if self.v_dim else "", chosen)
        return Op("attention", reads if chosen else tuple(filter(None, reads)), ("o",), ("",), attrs, 0)

    def dense(self) -> Mapping[str, Tensor]:
        table = self.table
        packed = np.zeros(_native.packed_bytes("f32", *table.shape), np.uint8)
        raw = table.view(np.uint8).reshape(VOCAB, -1)
        _native.pack_rows("f32", raw, table.shape[1], packed, len(packed) // -(-VOCAB // 16))
        dense = {"table": Tensor("f32", *table.shape, memoryview(packed))}
        if self.window:
            sinks = np.zeros(align(self.heads, 16), np.float32)
            sinks[: self.heads] = np.random.default_rng(self.seed).normal(size=self.heads)
            dense["sinks"] = Tensor("f32", 1, self.heads, memoryview(sinks.view(np.uint8)), vector=True)
        return dense

    def native(self, **settings: Any) -> NativeExecutor:
        settings = {"kv_dtype": "f32", "room": ContextRoom(128), "threads": 2, "max_tokens": 1024, **settings}
        return NativeExecutor(self.program(), self.dense(), (), **settings)

    def reference(self) -> ReferenceExecutor:
        return ReferenceExecutor(self.program(), DenseWeights(table=self.table.astype(np.float64)), ContextRoom(128))


def tokens_of(length: int, seed: int = 1) -> Ints:
    """No token twice, so that no two scores are equal."""
    return np.random.default_rng(seed).permutation(VOCAB)[:length].astype(np.int32)


def run(executor: Executor, tokens: Ints, steps: Sequence[int]) -> Floats:
    """The output of every token, in steps of these sizes, over pages in an order of no meaning."""
    pages = np.random.default_rng(7).permutation(executor.room.pages).astype(np.int32)
    found, start = [], 0
    for count in steps:
        rows = np.arange(count, dtype=np.int32)
        bounds = np.array([0, count], np.int32)
        part = tokens[start : start + count]
        found.append(executor.step(Batch(part, rows + np.int32(start), bounds, (pages,), rows)))
        start += count
    return np.concatenate(found)
