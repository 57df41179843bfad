"""The operations of docs/design.md in numpy and float64, for one sequence run in one piece: a model to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.program.ir import Op, Program

Doubles = npt.NDArray[np.float64]
Expert = Mapping[str, Doubles]  # gate, up, down and perhaps their biases


@dataclass
class NumpyProgram:
    """`dense` holds every weight; `experts[layer][expert]` the experts."""

    program: Program
    dense: Mapping[str, Doubles]
    experts: list[list[Expert]]
    buffers: dict[str, npt.NDArray] = field(default_factory=dict)
    kept: dict[int, tuple[Doubles, Doubles | None]] = field(default_factory=dict)  # of each cache

    def run(self, tokens: npt.NDArray[np.int32]) -> Doubles:
        """The logits of all tokens."""
        self.tokens = tokens
        self.buffers = {}
        for name, buffer in self.program.buffers.items():
            if buffer.base:
                owner = self.buffers[buffer.base]
                self.buffers[name] = owner[:, buffer.offset : buffer.offset + buffer.width]
            else:
                self.buffers[name] = np.zeros((len(tokens), buffer.width), np.int32 if buffer.dtype == "i32" else float)
        for op in self.program.ops:
            _OPERATIONS[op.kind](self, op, *(self.buffers[name] for name in op.reads))
        return self.buffers[self.program.output]

    def _write(self, op: Op, *values: npt.NDArray) -> None:
        for name, value in zip(op.writes, values, strict=True):
            self.buffers[name][:] = value

    def embed(self, op: Op) -> None:
        self._write(op, op.attrs["scale"] * self.dense[op.weights[0]][self.tokens])

    def rms_norm(self, op: Op, x: Doubles) -> None:
        groups = x.reshape(len(x), -1, op.attrs["group"])
        normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + op.attrs["eps"])
        self._write(op, (normed * (self.dense[op.weights[0]] if op.weights[0] else 1)).reshape(x.shape))

    def layer_norm(self, op: Op, x: Doubles) -> None:
        groups = x.reshape(len(x), -1, op.attrs["group"])
        centred = groups - groups.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + op.attrs["eps"])
        bias = self.dense[op.weights[1]] if op.weights[1] else 0
        self._write(op, (normed * self.dense[op.weights[0]] + bias).reshape(x.shape))

    def bound(self, op: Op, x: Doubles) -> None:
        limit = op.attrs["bound"]
        self._write(op, limit * np.tanh(x / limit) if op.attrs["smooth"] else np.clip(x, -limit, limit))

    def linear(self, op: Op, x: Doubles) -> None:
        pairs = zip(op.weights[::2], op.weights[1::2], strict=True)
        products = [x @ self.dense[matrix].T + (self.dense[bias] if bias else 0) for matrix, bias in pairs]
        self._write(op, *(op.attrs["scale"] * product for product in products))

    def head_linear(self, op: Op, x: Doubles) -> None:
        matrices = np.split(self.dense[op.weights[0]], op.attrs["heads"])
        for head, matrix in enumerate(matrices):
            self._run(op, "out", head, len(matrix))[:] = self._run(op, "in", head, matrix.shape[1]) @ matrix.T

    def chosen_linear(self, op: Op, x: Doubles, ids: npt.NDArray) -> None:
        matrices = np.split(self.dense[op.weights[0]], op.attrs["matrices"])
        for token, chosen in enumerate(ids):
            runs = np.broadcast_to(x[token].reshape(-1, matrices[0].shape[1]), (len(chosen), matrices[0].shape[1]))
            products = [matrices[matrix] @ run for matrix, run in zip(chosen, runs, strict=True)]
            self.buffers[op.writes[0]][token] = np.concatenate(products)

    def head_copy(self, op: Op, x: Doubles) -> None:
        for head in range(op.attrs["heads"]):
            self._run(op, "out", head, op.attrs["width"])[:] = self._run(op, "in", head, op.attrs["width"])

    def _run(self, op: Op, side: str, head: int, width: int) -> Doubles:
        start = head * op.attrs[f"{side}_stride"] + op.attrs[f"{side}_offset"]
        return self.buffers[(op.reads if side == "in" else op.writes)[0]][:, start : start + width]

    def rope(self, op: Op, x: Doubles) -> None:
        table, dim = self.program.ropes[op.attrs["table"]], op.attrs["dim"]
        angles = np.arange(len(x))[:, None] * np.array(table.inv_freq)
        steps = (np.arange(len(x)) + table.growth_ahead) // table.growth_every
        scales = table.scale * (1 + table.growth * np.log1p(steps))[:, None]
        cosine, sine = scales * np.cos(angles), scales * np.sin(angles)
        for head in range(op.attrs["heads"]):
            start = head * op.attrs["stride"] + op.attrs["offset"]
            run = x[:, start : start + dim]
            first, second = (run[:, 0::2], run[:, 1::2]) if op.attrs["pairs"] else np.split(run, 2, axis=1)
            first[:], second[:] = first * cosine - second * sine, second * cosine + first * sine

    def attention(self, op: Op, q: Doubles, k: Doubles | None = None, v: Doubles | None = None) -> None:
        a, n = op.attrs, len(q)
        if k is None:
            k, v = self.kept[a["cache"]]
        self.kept[a["cache"]] = k, v
        q, k = q.reshape(n, a["heads"], -1), k.reshape(n, a["kv_heads"], -1)
        values = k[..., : a["v_dim"]] if v is None else v.reshape(n, a["kv_heads"], -1)
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & ((distance < a["window"]) if a["window"] else True)
        if a["chunk"]:
            chunk = np.arange(n) // a["chunk"]
            seen &= chunk[:, None] == chunk
        out = np.empty((n, a["heads"], a["v_dim"]))
        for head in range(a["heads"]):
            kv = head * a["kv_heads"] // a["heads"]
            scores = a["scale"] * (q[:, head] @ k[:, kv].T)
            if a["softcap"]:
                scores = a["softcap"] * np.tanh(scores / a["softcap"])
            shares = np.exp(scores - scores.max()) * seen
            sink = np.exp(self.dense[op.weights[0]][head] - scores.max()) if op.weights[0] else 0.0
            out[:, head] = shares @ values[:, kv] / (shares.sum(-1, keepdims=True) + sink)
        self._write(op, out.reshape(n, -1))

    def route(self, op: Op, logits: Doubles) -> None:
        a = op.attrs
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        scores = {"softmax": shares, "sigmoid": 1 / (1 + np.exp(-logits))}.get(a["scoring"], logits)
        choice = scores + (self.dense[op.weights[0]] if op.weights[0] else 0)
        groups = choice.reshape(len(choice), a["groups"], -1)
        worth = np.sort(groups, axis=-1)[..., ::-1][..., : a["group_top"]].sum(-1)
        kept = np.argsort(-worth, axis=-1, kind="stable")[:, : a["top_groups"]]
        closed = np.ones(worth.shape, bool)
        np.put_along_axis(closed, kept, False, axis=1)
        choice = np.where(closed[..., None], -np.inf, groups).reshape(choice.shape)
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, : a["top_k"]]
        weights = np.take_along_axis(scores, ids, axis=1)
        if a["scoring"] == "softmax_topk":
            weights = np.exp(weights - weights.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        if a["scoring"] == "sigmoid_topk":
            weights = 1 / (1 + np.exp(-weights))
        if a["scoring"] == "sparse_mixer":
            weights = _sparse_shares(logits, ids, a["jitter"])
        if a["normalize"]:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        self._write(op, ids, weights * a["scale"])

    def _run_expert(self, op: Op, expert: Expert, x: Doubles) -> Doubles:
        gate, up = (expert[name] @ x + expert.get(f"{name}_bias", 0.0) for name in ("gate", "up"))
        return expert["down"] @ _activate(op, gate, up) + expert.get("down_bias", 0.0)

    def run_experts(self, op: Op, x: Doubles, ids: npt.NDArray, weights: Doubles | None = None) -> None:
        layer = self.experts[op.attrs["layer"]]
        weights = np.ones(ids.shape) if weights is None else weights
        for token in range(len(x)):
            chosen = zip(ids[token], weights[token], strict=True)
            self.buffers[op.writes[0]][token] = sum(w * self._run_expert(op, layer[e], x[token]) for e, w in chosen)

    def glu(self, op: Op, gate: Doubles, up: Doubles) -> None:
        self._write(op, _activate(op, gate, up))

    def sigmoid_gate(self, op: Op, x: Doubles, gate: Doubles) -> None:
        self._write(op, x / (1 + np.exp(-np.repeat(gate, x.shape[1] // gate.shape[1], axis=1))))

    def gate(self, op: Op, x: Doubles, gate: Doubles) -> None:
        assert op.attrs["activation"] == "none"
        self._write(op, x * np.repeat(gate, x.shape[1] // gate.shape[1], axis=1))

    def add(self, op: Op, a: Doubles, b: Doubles | None = None) -> None:
        self._write(op, a + op.attrs["scale"] * (self.dense[op.weights[0]] if b is None else b))

    def scale(self, op: Op, x: Doubles) -> None:
        self._write(op, x * self.dense[op.weights[0]])

    def select(self, op: Op, x: Doubles) -> None:
        self._write(op, x)


def _sparse_shares(logits: Doubles, ids: npt.NDArray, jitter: float) -> Doubles:
    shares = np.zeros(ids.shape)
    for token, chosen in np.ndenumerate(ids):
        row, place = token
        x, best = logits[row], logits[row, chosen]
        counts = (best - x) / np.maximum(np.abs(x), best) <= 2 * jitter
        counts[ids[row, :place]] = False
        shares[row, place] = 1 / np.exp(x[counts] - best).sum()
    return shares


def _activate(op: Op, gate: Doubles, up: Doubles) -> Doubles:
    if op.attrs["activation"] == "silu":
        return gate / (1 + np.exp(-gate)) * up
    gate = np.minimum(gate, op.attrs["limit"])
    up = np.clip(up, -op.attrs["limit"], op.attrs["limit"])
    return (up + 1) * gate / (1 + np.exp(-op.attrs["alpha"] * gate))


_OPERATIONS = {
    "embed": NumpyProgram.embed,
    "rms_norm": NumpyProgram.rms_norm,
    "layer_norm": NumpyProgram.layer_norm,
    "bound": NumpyProgram.bound,
    "linear": NumpyProgram.linear,
    "head_linear": NumpyProgram.head_linear,
    "chosen_linear": NumpyProgram.chosen_linear,
    "head_copy": NumpyProgram.head_copy,
    "rope": NumpyProgram.rope,
    "attention": NumpyProgram.attention,
    "route": NumpyProgram.route,
    "experts": NumpyProgram.run_experts,
    "glu": NumpyProgram.glu,
    "sigmoid_gate": NumpyProgram.sigmoid_gate,
    "gate": NumpyProgram.gate,
    "add": NumpyProgram.add,
    "scale": NumpyProgram.scale,
    "select": NumpyProgram.select,
}
