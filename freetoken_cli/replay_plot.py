"""The picture of `freetoken replay --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.base.errors import FreetokenError, UsageError
from engine.experts.policies import LRU, PREFILL_REFRESH, STATIC
from engine.experts.trace import TraceHeader

_FORMATS = (".png", ".svg", ".pdf")

# Miss rates that arXiv 2608.16157 gives, on its own workloads: capacity in percent, and percent missed.
PAPER: dict[str, tuple[int, dict[str, int]]] = {
    "Qwen/Qwen3.6-35B-A3B": (37, {LRU: 16, STATIC: 62, PREFILL_REFRESH: 41}),
    "deepseek-ai/DeepSeek-V4-Flash": (11, {LRU: 39, STATIC: 89, PREFILL_REFRESH: 59}),
}


def check_target(path: Path) -> Path:
    """`path`, if a plot can be written there; UsageError for its name, FreetokenError where matplotlib is absent."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot: {str(path)!r} does not end in {', '.join(_FORMATS)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: {path.absolute().parent} is no folder.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise FreetokenError(
            "Plots need matplotlib, which is not installed.", 'Install it: pip install "freetoken-cli[plot]"'
        ) from None
    return path


def draw(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]], header: TraceHeader, share: float) -> None:
    """Miss rates of each policy over the share of experts in slots; a line marks the `share` replayed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
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
    try:
        # without the date and the version, the same trace gives the same file
        figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix.lower() == ".png" else None)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
