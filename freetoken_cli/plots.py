"""What the pictures of `probe` and `replay` have in common: where they may go, and how they get there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.errors import FreetokenError, UsageError
from engine.base.paths import typed_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")


def check_target(text: str) -> Path:
    """The file that `--plot` names. UsageError for one that cannot be drawn, FreetokenError without matplotlib."""
    path = typed_path(text)
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot: {text!r} does not end in {', '.join(_FORMATS)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: {path.absolute().parent} is no folder.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise FreetokenError(
            "Plots need matplotlib, which is not installed.", 'Install it: pip install "freetoken-cli[plot]"'
        ) from None
    return path


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the same one gives the same bytes. OSError, which names the file, where that cannot be done."""
    try:
        # a date or a version in it would make every file another
        figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix.lower() == ".png" else None)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
