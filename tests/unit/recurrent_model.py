"""Small random programs that keep everything a program can: pages, window pages and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import Program, State
from tests.unit.device_rig import Model, one_bank
from tests.unit.native_model import RandomModel

PAGE = 16


@dataclass
class RecurrentModel(RandomModel):
    """Adds recurrent layers, each from x to x."""

    states: list[State] = field(default_factory=list)

    def linear(self, name: str, width: int, scale: float = 0.3) -> str:
        """A buffer of so many values, a product of x."""
        self.buffer(name, width)
        self.op("linear", ("x",), (name,), (self.matrix(f"w_{name}", width, self.hidden), ""), scale=scale)
        return name

    def delta_net(self, channelwise: bool = False) -> None:
        """A convolution in place over q, k and v, and the delta rule over views of it."""
        n, key_heads, heads, k_dim, v_dim = len(self.ops), 2, 4, 6, 10
        keys, width = key_heads * k_dim, 2 * key_heads * k_dim + heads * v_dim
        mixed = self.linear(f"qkv{n}", width)
        self.convolution(mixed, mixed, width, 4, "silu", bias=False)
        q = self.buffer(f"q_{n}", keys, base=mixed)
        k = self.buffer(f"k_{n}", keys, base=mixed, offset=keys)
        v = self.buffer(f"v_{n}", heads * v_dim, base=mixed, offset=2 * keys)
        for name in (q, k):
            self.op("l2_norm", (name,), (name,), eps=1e-6, group=k_dim)
        g = self.linear(f"g{n}", heads * (k_dim if channelwise else 1))
        decays = self.vector(f"a_log{n}", heads), self.vector(f"dt_bias{n}", self.buffers[g].width)
        self.op("decay", (g,), (g,), decays, heads=heads, bound=0.0)
        b = self.linear(f"b{n}", heads)
        out = self.buffer(f"delta{n}", heads * v_dim)
        sizes = {"key_heads": key_heads, "heads": heads, "k_dim": k_dim, "v_dim": v_dim}
        self.op("delta_rule", (q, k, v, g, b), (out,), state=self.state(heads * k_dim * v_dim), scale=0.4, **sizes)
        gate = self.linear(f"z{n}", heads * v_dim)
        attrs = {"eps": 1e-5, "group": v_dim, "gate_first": False, "activation": "silu"}
        self.op("gated_norm", (out, gate), (out,), (self.vector(f"norm{n}", v_dim, 1.0),), **attrs)
        self.add_linear(out, heads * v_dim)

    def state_space(self, by_channel: bool = False) -> None:
        """A convolution with a bias, and a state space: of heads (Mamba-2) or of channels (Mamba-1)."""
        n = len(self.ops)
        heads, head_dim, groups, state_dim = (24, 1, 1, 9) if by_channel else (6, 4, 2, 9)
        inner = heads * head_dim
        source, x = self.linear(f"in{n}", inner), self.buffer(f"x{n}", inner)
        self.convolution(source, x, inner, 3, "none", bias=True)
        dt = self.linear(f"dt{n}", heads)
        b, c = self.linear(f"B{n}", groups * state_dim), self.linear(f"C{n}", groups * state_dim)
        weights = (
            self.vector(f"a_log{n}", heads * (state_dim if by_channel else 1)),
            self.vector(f"d{n}", heads),
            self.vector(f"dt_bias{n}", heads),
        )
        sizes = {"heads": heads, "head_dim": head_dim, "groups": groups, "state_dim": state_dim}
        bounds = {"dt_min": 0.0, "dt_max": 0.0} if by_channel else {"dt_min": 0.01, "dt_max": 1.5}
        state = self.state(inner * state_dim)
        self.op("ssm", (x, dt, b, c), (x,), weights, state=state, **sizes, **bounds)
        self.add_linear(x, inner)

    def convolution(self, x: str, y: str, channels: int, kernel: int, activation: str, bias: bool) -> None:
        n = len(self.ops)
        weights = self.vector(f"conv{n}", channels * kernel), self.vector(f"conv_bias{n}", channels) if bias else ""
        attrs = {"channels": channels, "kernel": kernel, "activation": activation}
        self.op("conv", (x,), (y,), weights, state=self.state(channels * (kernel - 1)), **attrs)

    def state(self, values: int) -> int:
        self.states.append(State(values))
        return len(self.states) - 1

    def program(self) -> Program:
        return replace(super().program(), states=tuple(self.states))


def hybrid_model(seed: int = 0) -> Model:
    """Every mixer, and experts between them."""
    random = RecurrentModel(seed=seed)
    random.delta_net()
    random.moe()
    random.attention(window=20, reach=20)
    random.state_space()
    random.moe()
    random.attention()
    random.delta_net(channelwise=True)
    random.state_space(by_channel=True)
    return Model(random.program(), random.dense, (one_bank(random.banks),))


@dataclass(frozen=True)
class Part:
    """Tokens of one sequence from position `start` on. Its pages and window pages are those of its number."""

    number: int
    tokens: Sequence[int]
    start: int = 0
    saves: tuple[tuple[int, int], ...] = ()  # (tokens of this part before it, slot)

    PAGES = 12  # of a sequence


def batch_of(*parts: Part, given_up: bool = True, reach: int = 20) -> Batch:
    """A step of these parts; all logits are wanted. Pages that no token sees any more are given up."""
    counts = [len(part.tokens) for part in parts]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    saves = [
        (begin + after - 1, slot) for part, begin in zip(parts, starts, strict=False) for after, slot in part.saves
    ]
    windows = []
    for part in parts:
        table = np.arange(Part.PAGES, dtype=np.int32)[::-1] + part.number * Part.PAGES
        if given_up:
            table[: max(0, part.start - reach + 1) // PAGE] = -1
        windows.append(table)
    return Batch(
        tokens=np.concatenate([np.asarray(part.tokens, np.int32) for part in parts]),
        positions=np.concatenate(
            [part.start + np.arange(n, dtype=np.int32) for part, n in zip(parts, counts, strict=True)]
        ),
        seq_starts=starts,
        page_tables=tuple(np.arange(Part.PAGES, dtype=np.int32) + part.number * Part.PAGES for part in parts),
        rows=np.arange(starts[-1], dtype=np.int32),
        window_tables=tuple(windows),
        states=np.asarray([part.number for part in parts], np.int32),
        saves=np.asarray(saves, np.int32).reshape(-1, 2),
    )


ROOM = ContextRoom(pages=4 * Part.PAGES, windows=4 * Part.PAGES, states=10)
