"""Small random programs with every operation, for the native executor and its float64 model alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import _native
from engine.files.codecs import CODECS, align
from engine.files.ftw.manifest import Field, Shape, record_size
from engine.files.ftw.opening import Bank, Tensor
from engine.measure.example_rows import random_rows
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Executor, Floats
from engine.program.ir import Buffer, Cache, Op, Program, RopeTable
from engine.program.native import NativeExecutor
from tests.unit.numpy_program import Expert, NumpyProgram

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 64, 37, 4, 2, 24
WIDTH, EXPERTS, TOP_K = 96, 8, 3
LONG = 600  # tokens: three blocks of attention
ATTENTION = {
    "plain": {},
    "every head its own keys": {"kv_heads": HEADS},
    "one key head": {"kv_heads": 1},
    "odd head": {"dim": 10},
    "sinks": {"sinks": True},
    "short window": {"window": 5},
    "window over blocks": {"window": 300, "sinks": True},
    "softcap": {"softcap": 2.0},
    "many heads": {"heads": 40, "kv_heads": 1, "dim": 8},
}


@dataclass
class RandomModel:
    """A program under construction, with its weights packed and as float64."""

    codec: str = "f32"
    seed: int = 0
    buffers: dict[str, Buffer] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    ropes: list[RopeTable] = field(default_factory=list)
    dense: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    experts: list[list[Expert]] = field(default_factory=list)
    banks: list[Bank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        unit = CODECS[self.codec].cols_unit  # of some codecs a row is never shorter
        self.hidden, self.width = align(HIDDEN, unit), align(WIDTH, unit)
        self.buffer("x", self.hidden)
        self.op("embed", (), ("x",), (self.matrix("embed", VOCAB, self.hidden, "f32"),), scale=10.0)

    # --- parts

    def buffer(self, name: str, width: int, **more: Any) -> str:
        self.buffers[name] = Buffer(width, **more)
        return name

    def op(self, kind: str, reads: tuple, writes: tuple, weights: tuple = (), **attrs: Any) -> None:
        self.ops.append(Op(kind, reads, writes, weights, attrs, 0))

    def matrix(self, name: str, rows: int, cols: int, codec: str = "") -> str:
        codec = codec or self.codec
        packed, values = self.packed(codec, rows, cols)
        self.dense[name], self.values[name] = Tensor(codec, rows, cols, memoryview(packed)), values
        return name

    def packed(self, codec: str, rows: int, cols: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
        out = np.zeros(_native.packed_bytes(codec, rows, cols), np.uint8)
        _native.pack_rows(codec, random_rows(Shape(codec, rows, cols), self.rng), cols, out, len(out) // -(-rows // 16))
        return out, _native.unpack(codec, rows, cols, out).astype(np.float64)

    def vector(self, name: str, length: int, mean: float = 0.0) -> str:
        values = self.rng.normal(mean, 0.3, length).astype(np.float32)
        self.dense[name] = Tensor("f32", 1, length, memoryview(values.view(np.uint8)), vector=True)
        self.values[name] = values.astype(np.float64)
        return name

    def bank(self, biases: bool, fused: bool) -> None:
        """Experts of one more MoE layer, in two shards."""
        names = ("gate", "up", "down")
        shapes = {n: (self.hidden, self.width) if n == "down" else (self.width, self.hidden) for n in names}
        fields: list[Field] = []
        for name in ("gate_up", "down") if fused else names:
            fields.append(Field(name, Shape(self.codec, *shapes[name.removesuffix("_up")]), self._end(fields)))
        for name in names if biases else ():
            fields.append(Field(f"{name}_bias", Shape("f32", 1, shapes[name][0], vector=True), self._end(fields)))
        size, layer = record_size(tuple(fields)), []
        records = np.zeros((EXPERTS, size), np.uint8)
        for record in records:
            expert = {}
            for name in names:
                packed, expert[name] = self.packed(self.codec, *shapes[name])
                self._place(record, fields, name, packed)
                if biases:
                    bias = self.rng.normal(0, 0.3, shapes[name][0]).astype(np.float32)
                    expert[f"{name}_bias"] = bias.astype(np.float64)
                    self._place(record, fields, f"{name}_bias", bias.view(np.uint8))
            layer.append(expert)
        shards = (records[:5], records[5:])
        views = tuple(memoryview(np.ascontiguousarray(shard).reshape(-1)) for shard in shards)
        self.banks.append(Bank(tuple(fields), size, EXPERTS, (len(self.experts),), views, 5))
        self.experts.append(layer)

    @staticmethod
    def _end(fields: list[Field]) -> int:
        return fields[-1].offset + -(-fields[-1].stored_bytes // 64) * 64 if fields else 0

    @staticmethod
    def _place(record: npt.NDArray[np.uint8], fields: list[Field], name: str, data: npt.NDArray[np.uint8]) -> None:
        """Where a field lies in the record; gate and up may be tiles of one field in turn."""
        for found in fields:
            if found.name == name:
                record[found.offset : found.offset + len(data)] = data
            elif found.name == "gate_up" and name in ("gate", "up"):
                tiles = record[found.offset : found.offset + 2 * len(data)].reshape(-(-found.shape.rows // 16), 2, -1)
                tiles[:, int(name == "up")] = data.reshape(len(tiles), -1)

    # --- layers, each from x to x

    def attention(self, heads: int = HEADS, kv_heads: int = KV_HEADS, dim: int = HEAD_DIM, **changes: Any) -> None:
        n = len(self.caches)
        widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        for name, width in widths.items():
            self.buffer(f"{name}{n}", width)
            self.op("linear", ("x",), (f"{name}{n}",), (self.matrix(f"w{name}{n}", width, self.hidden), ""), scale=1.0)
        self.buffer(f"o{n}", heads * dim)
        self.caches.append(Cache(kv_heads, dim, dim, changes.pop("reach", 0)))
        sinks = self.vector(f"sinks{n}", heads) if changes.pop("sinks", False) else ""
        attrs = {"cache": n, "heads": heads, "kv_heads": kv_heads, "k_dim": dim, "v_dim": dim, "scale": 0.3}
        attrs |= {"window": 0, "chunk": 0, "softcap": 0.0} | changes
        self.op("attention", (f"q{n}", f"k{n}", f"v{n}"), (f"o{n}",), (sinks,), **attrs)
        self.add_linear(f"o{n}", heads * dim)

    def add_linear(self, source: str, width: int) -> None:
        n = len(self.ops)
        self.buffer(f"part{n}", self.hidden)
        codec = self.codec if CODECS[self.codec].valid_cols(width) else "f32"
        matrix = self.matrix(f"out{n}", self.hidden, width, codec)
        self.op("linear", (source,), (f"part{n}",), (matrix, self.vector(f"bias{n}", self.hidden)), scale=0.5)
        self.op("add", ("x", f"part{n}"), ("x",), scale=1.0)

    def moe(self, biases: bool = False, fused: bool = True, activation: str = "silu", **changes: Any) -> None:
        n = len(self.experts)
        self.buffer(f"scores{n}", EXPERTS)
        self.buffer(f"ids{n}", TOP_K, dtype="i32")
        self.buffer(f"weights{n}", TOP_K)
        self.buffer(f"mixed{n}", self.hidden)
        router = self.matrix(f"router{n}", EXPERTS, self.hidden, "f32")
        self.op("linear", ("x",), (f"scores{n}",), (router, ""), scale=1.0)
        choice = self.vector(f"choice{n}", EXPERTS) if changes.pop("bias", False) else ""
        attrs = {"top_k": TOP_K, "scoring": "softmax", "groups": 1, "top_groups": 1, "group_top": 1}
        attrs |= {"normalize": True, "scale": 1.0} | changes
        self.op("route", (f"scores{n}",), (f"ids{n}", f"weights{n}"), (choice,), **attrs)
        self.bank(biases, fused)
        reads = ("x", f"ids{n}", f"weights{n}")
        self.op("experts", reads, (f"mixed{n}",), layer=n, experts=EXPERTS, activation=activation, alpha=1.7, limit=0.5)
        self.op("add", ("x", f"mixed{n}"), ("x",), scale=0.7)

    # --- the whole

    def program(self) -> Program:
        self.buffer("rows", self.hidden, domain="row")
        self.buffer("logits", VOCAB, domain="row")
        self.op("select", ("x",), ("rows",))
        self.op("linear", ("rows",), ("logits",), (self.matrix("head", VOCAB, self.hidden), ""), scale=1.0)
        ops, caches, ropes = tuple(self.ops), tuple(self.caches), tuple(self.ropes)
        return Program(self.buffers, ops, caches, ropes, "logits", VOCAB, "x", (len(ops) - 2,))

    def finish(self, **settings: Any) -> tuple[NativeExecutor, NumpyProgram]:
        program = self.program()
        settings = {"kv_dtype": "f32", "room": ContextRoom(64), "threads": 2, **settings}
        return NativeExecutor(program, self.dense, self.banks, **settings), NumpyProgram(
            program, self.values, self.experts
        )


class DenseWeights:
    """Weights of a program without experts."""

    def __init__(self, **tensors: Any) -> None:
        self._tensors = tensors

    def dense(self, name: str) -> Floats:
        return np.asarray(self._tensors[name], np.float32)

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        raise KeyError(f"expert {expert} of layer {layer}")


def whole(tokens: npt.NDArray[np.int32], start: int = 0) -> Batch:
    """One sequence in pages that lie in reverse, all logits wanted."""
    count = len(tokens)
    positions = np.arange(start, start + count, dtype=np.int32)
    pages = np.arange(-(-(start + count) // 16), dtype=np.int32)[::-1].copy()
    rows = np.arange(count, dtype=np.int32)
    return Batch(tokens.astype(np.int32), positions, np.array([0, count], np.int32), (pages,), rows)


def tokens_of(count: int, seed: int = 1) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def assert_near(executor: Executor, model: NumpyProgram, count: int, tolerance: float) -> None:
    tokens = tokens_of(count)
    ours, exact = executor.step(whole(tokens)), model.run(tokens)
    assert np.abs(ours - exact).max() <= tolerance * np.abs(exact).max()
