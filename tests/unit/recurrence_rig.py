"""Programs of one recurrent operation, run natively in any batching, and the same recurrences in plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import _native
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Floats, Ints
from engine.program.ir import Buffer, Op, Program, State
from engine.program.native import NativeExecutor
from tests.unit.any_bits import pack_rows

VOCAB = 40
Doubles = npt.NDArray[np.float64]
Recurrence = Callable[[Mapping[str, Any], Sequence[Doubles], Sequence[Doubles | None]], Doubles]


@dataclass(frozen=True)
class Case:
    """One operation: how wide its inputs, output and weights are, and what it does with [tokens, width] inputs.

    Inputs are normal with the given deviations; a weight without values is absent.
    """

    kind: str
    reads: tuple[tuple[int, float], ...]
    width: int
    model: Recurrence
    attrs: Mapping[str, Any]
    weights: tuple[npt.NDArray[np.float32] | None, ...] = ()
    state: int = 0
    in_place: bool = False


def vector(length: int, mean: float = 0.0, seed: int = 5) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed + length).normal(mean, 0.5, length).astype(np.float32)


class Rig:
    """A program that reads a token's inputs from a table, runs the operation and returns its output as logits."""

    def __init__(self, case: Case, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.case = case
        parts = [rng.normal(0, scale, (VOCAB, width)).astype(np.float32) for width, scale in case.reads]
        self.table: Floats = np.concatenate(parts, axis=1)

    def executor(self, *, states: int = 4, max_tokens: int = 256, **settings: Any) -> NativeExecutor:
        room = ContextRoom(0, 0, states if self.case.state else 0)
        return NativeExecutor(self.program(), self.tensors(), (), room=room, max_tokens=max_tokens, **settings)

    def program(self) -> Program:
        case, offset = self.case, 0
        buffers = {"x": Buffer(self.table.shape[1]), "out": Buffer(case.width, domain="row")}
        for i, (width, _) in enumerate(case.reads):
            buffers[f"in{i}"] = Buffer(width, base="x", offset=offset)
            offset += width
        written = "in0" if case.in_place else "y"
        if not case.in_place:
            buffers["y"] = Buffer(case.width)
        names = tuple(f"w{i}" if values is not None else "" for i, values in enumerate(case.weights))
        attrs = {**case.attrs, **({"state": 0} if case.state else {})}
        ops = (
            Op("embed", (), ("x",), ("table",), {"scale": 1.0}),
            Op(case.kind, tuple(f"in{i}" for i in range(len(case.reads))), (written,), names, attrs, 0),
            Op("select", (written,), ("out",)),
        )
        states = (State(case.state),) if case.state else ()
        return Program(buffers, ops, (), (), "out", case.width, "x", (2,), states)

    def tensors(self) -> dict[str, Tensor]:
        rows, cols = self.table.shape
        packed = np.zeros(_native.packed_bytes("f32", rows, cols), np.uint8)
        raw = self.table.view(np.uint8).reshape(rows, -1)
        pack_rows("f32", raw, cols, packed, len(packed) // -(-rows // 16))
        tensors = {"table": Tensor("f32", rows, cols, memoryview(packed))}
        for i, values in enumerate(self.case.weights):
            if values is not None:
                tensors[f"w{i}"] = Tensor("f32", 1, len(values), memoryview(values.view(np.uint8)), vector=True)
        return tensors

    def model(self, tokens: Ints) -> Doubles:
        """What the operation gives for one whole sequence, in f64."""
        rows = self.table[tokens].astype(np.float64)
        bounds = np.cumsum([width for width, _ in self.case.reads])[:-1]
        weights = [None if values is None else values.astype(np.float64) for values in self.case.weights]
        return self.case.model(self.case.attrs, np.split(rows, bounds, axis=1), weights)


@dataclass
class Run:
    """A sequence under way: its tokens, its state slot, how many tokens are done, and their outputs."""

    tokens: Ints
    slot: int
    done: int = 0
    outputs: list[Floats] = field(default_factory=list)

    @property
    def output(self) -> Floats:
        return np.concatenate(self.outputs)


def advance(
    executor: NativeExecutor, chunks: Sequence[tuple[Run, int]], saves: Mapping[int, int] | None = None
) -> None:
    """Run so many tokens of each sequence, in one batch; `saves`: slots by token of the batch."""
    counts = [count for _, count in chunks]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    batch = Batch(
        tokens=np.concatenate([run.tokens[run.done : run.done + count] for run, count in chunks]).astype(np.int32),
        positions=np.concatenate([np.arange(run.done, run.done + count) for run, count in chunks]).astype(np.int32),
        seq_starts=starts,
        page_tables=tuple(np.zeros(0, np.int32) for _ in chunks),
        rows=np.arange(starts[-1], dtype=np.int32),
        states=np.array([run.slot for run, _ in chunks], np.int32),
        saves=np.array(sorted((saves or {}).items()), np.int32).reshape(-1, 2),
    )
    outputs = np.split(executor.step(batch), starts[1:-1])
    for (run, count), output in zip(chunks, outputs, strict=True):
        run.done += count
        run.outputs.append(output)


def tokens_of(count: int, seed: int = 1) -> Ints:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


# --- the recurrences in numpy


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: Mapping[str, Callable[[Doubles], Doubles]] = {
    "none": lambda x: x,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.logaddexp(0, x),
}


def conv(attrs: Mapping[str, Any], reads: Sequence[Doubles], weights: Sequence[Doubles | None]) -> Doubles:
    (x,), (w, bias) = reads, weights
    assert w is not None
    kernel = attrs["kernel"]
    w = w.reshape(-1, kernel)
    padded = np.concatenate([np.zeros((kernel - 1, x.shape[1])), x])
    total = sum(padded[j : j + len(x)] * w[:, j] for j in range(kernel)) + (0.0 if bias is None else bias)
    return ACTIVATIONS[attrs["activation"]](np.asarray(total))


def delta_rule(attrs: Mapping[str, Any], reads: Sequence[Doubles], weights: Sequence[Doubles | None]) -> Doubles:
    q, k, v, *learned = reads
    heads, k_dim, v_dim = attrs["heads"], attrs["k_dim"], attrs["v_dim"]
    share = heads // attrs["key_heads"]
    out = np.zeros((len(q), heads, v_dim))
    for head in range(heads):
        state, key = np.zeros((k_dim, v_dim)), slice(head // share * k_dim, (head // share + 1) * k_dim)
        for t in range(len(q)):
            update = v[t, head * v_dim : (head + 1) * v_dim]
            if learned:
                g, b = learned
                state = np.exp(g[t].reshape(heads, -1)[head])[:, None] * state
                update = sigmoid(b[t, head]) * (update - state.T @ k[t, key])
            else:
                state = np.exp(-attrs["slope"] * 2 ** (-8 * (head + 1) / heads)) * state
            state += np.outer(k[t, key], update)
            out[t, head] = attrs["scale"] * state.T @ q[t, key]
    return out.reshape(len(q), -1)


def ssm(attrs: Mapping[str, Any], reads: Sequence[Doubles], weights: Sequence[Doubles | None]) -> Doubles:
    x, dt, b, c = reads
    a_log, d, dt_bias = (np.asarray(w) for w in weights)
    heads, dim, groups, n = (attrs[name] for name in ("heads", "head_dim", "groups", "state_dim"))
    out = np.zeros((len(x), heads, dim))
    for head in range(heads):
        state, a = np.zeros((dim, n)), -np.exp(a_log.reshape(heads, -1)[head])
        part = slice(head // (heads // groups) * n, (head // (heads // groups) + 1) * n)
        for t in range(len(x)):
            step = max(np.logaddexp(0, dt[t, head] + dt_bias[head]), attrs["dt_min"])
            step = min(step, attrs["dt_max"] or np.inf)
            values = x[t, head * dim : (head + 1) * dim]
            state = np.exp(step * a) * state + step * np.outer(values, b[t, part])
            out[t, head] = state @ c[t, part] + d[head] * values
    return out.reshape(len(x), -1)
