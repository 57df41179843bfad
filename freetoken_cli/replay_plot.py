"""The picture of `freetoken replay --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.experts.policies import LRU, PREFILL_REFRESH, STATIC
from engine.experts.trace import TraceHeader
from freetoken_cli.plots import new_figure, save

# Miss rates that arXiv 2608.16157 gives, on its own workloads: capacity in percent, and percent missed.
PAPER: dict[str, tuple[int, dict[str, int]]] = {
    "Qwen/Qwen3.6-35B-A3B": (37, {LRU: 16, STATIC: 62, PREFILL_REFRESH: 41}),
    "deepseek-ai/DeepSeek-V4-Flash": (11, {LRU: 39, STATIC: 89, PREFILL_REFRESH: 59}),
}


def draw(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]], header: TraceHeader, share: float) -> None:
    """Miss rates of each policy over the share of experts in slots; a line marks the `share` replayed."""
    figure = new_figure(7.2, 4.5)
    axes = figure.add_subplot()
    paper_at, paper = PAPER.get(header.model, (0, {}))
    for name, points in curves.items():
        (line,) = axes.plot(*zip(*[(x, y * 100) for x, y in points], strict=True), marker="o", markersize=3, label=name)
        if name in paper:
            label = f"{name}, the paper's workloads"
            axes.plot([paper_at], [paper[name]], marker="*", markersize=12, ls="", color=line.get_color(), label=label)
    axes.axvline(share * 100, color="0.8", zorder=0)
    axes.set_xlabel("experts in slots, % of the pool")
    axes.set_ylabel("expert reads that miss, %")
    axes.set_title(f"{header.model} ({header.origin} trace)", fontsize=10)
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)
