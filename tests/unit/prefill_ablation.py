"""Prompts on a model of the paper's shape, by the launches that are issued for them and a virtual clock.

Qwen3.6-35B-A3B on the paper's RTX 5090 server (arXiv 2608.16157): a pool of 64.4 GB over a link of 52.7 GB/s. The paper
does not say how long the device computes; that is taken from two of its figures, the tokens a second that are lost
without the second buffer at 4,096 and 8,192 tokens: a chunk of n tokens computes for `FIXED + n * PER_TOKEN` seconds.
What follows for 16,384 tokens, and all tokens a second, are predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from engine.device.virtual_time import makespan
from tests.unit.prefill_rig import Issued, ModelShape, Ring, seconds_of

QWEN = ModelShape(layers=40, experts=256, top_k=8)
CHUNK = 8192
POOL = 64.4 / 52.7  # seconds that the whole pool takes over the link
LOST = {4096: 0.19, 8192: 0.25, 16384: 0.26}  # tokens a second, by the paper
_COMPUTED = {tokens: POOL / (1 - LOST[tokens]) - POOL for tokens in (4096, 8192)}
PER_TOKEN = (_COMPUTED[8192] - _COMPUTED[4096]) / 4096
FIXED = _COMPUTED[4096] - 4096 * PER_TOKEN
HELD = 37  # percent of the pool that the paper's cache holds


@dataclass(frozen=True)
class Ablation:
    """Seconds of a prompt: as it is issued, with one buffer, and with a warm cache of `HELD` percent."""

    tokens: int
    seconds: float
    one_buffer: float
    warm: float

    @property
    def lost(self) -> float:
        """Share of the tokens a second that the second buffer is worth."""
        return 1 - self.seconds / self.one_buffer


def ablate(tokens: int) -> Ablation:
    """A prompt of `tokens`, in chunks of at most `CHUNK`, through a ring of two layers, or one."""
    two, one = 2 * QWEN.experts, QWEN.experts
    return Ablation(
        tokens,
        seconds(tokens, Issued(QWEN, two)),
        seconds(tokens, Issued(QWEN, one, Ring(buffers=1))),
        seconds(tokens, Issued(QWEN, two + len(_residents(two)), residents=_residents(two))),
    )


def seconds(tokens: int, issued: Issued) -> float:
    """What the launches of a prompt take; a layer's computation is shared by its parts as its records are."""
    chunks = [min(CHUNK, tokens - begin) for begin in range(0, tokens, CHUNK)]
    nodes = issued.prompt(chunks)
    turn = issued.experts.stream.turns[0]
    parts = []
    for chunk in chunks:
        layer_seconds = (FIXED + chunk * PER_TOKEN) / QWEN.layers
        for launch in turn.layers.values():
            records = [len(part.records) for part in turn.parts[launch.first : launch.first + launch.parts]]
            parts += [(POOL * n / _POOL_RECORDS, layer_seconds * n / sum(records)) for n in records]
    return makespan(nodes, seconds_of(parts, nodes))


_POOL_RECORDS = QWEN.layers * QWEN.experts


def _residents(ring: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """What a cache of `HELD` percent holds beside the ring: as much of every layer, but for one record."""
    count = _POOL_RECORDS * HELD // 100 - ring
    ends = [count * (layer + 1) // QWEN.layers for layer in range(QWEN.layers)]
    shares = np.diff([0, *ends])
    return np.concatenate(
        [layer * QWEN.experts + np.arange(share, dtype=np.int32) for layer, share in enumerate(shares)]
    ).astype(np.int32)


def draw_prefill(path: Path, table: Callable[[str, Sequence[str], Sequence[Sequence[object]]], None]) -> None:
    """The table and the plot of docs/experts.md, "Prefill"."""
    found = [ablate(tokens) for tokens in LOST]
    rows = [
        (
            f"{a.tokens:,}",
            f"{a.seconds:.2f}",
            f"{a.one_buffer:.2f}",
            f"{a.lost * 100:.1f}",
            f"{LOST[a.tokens] * 100:.0f}",
            f"{a.tokens / a.seconds:,.0f}",
            f"{a.warm:.2f}",
        )
        for a in found
    ]
    head = ("tokens", "s", "s, one buffer", "lost, %", "the paper, %", "tokens/s", f"s, {HELD} % in slots")
    table("Prompts on the virtual clock", head, rows)
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    bars = {
        "one buffer": [a.tokens / a.one_buffer for a in found],
        "two buffers": [a.tokens / a.seconds for a in found],
        f"two buffers, {HELD} % of the pool in slots": [a.tokens / a.warm for a in found],
    }
    for place, (label, values) in enumerate(bars.items()):
        axes.bar([x + 0.27 * (place - 1) for x in range(len(found))], values, 0.25, label=label)
    axes.set_xticks(range(len(found)), [f"{a.tokens:,} tokens" for a in found])
    axes.set_ylabel("tokens a second (virtual)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=90, metadata={"Software": None})
