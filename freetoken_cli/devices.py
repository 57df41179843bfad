"""Which devices this release can run on; the others are refused with a sentence."""

from __future__ import annotations

from engine.base.errors import UnsupportedError

AVAILABLE = ("auto", "cpu")


def check_device(device: str) -> None:
    """Raises UnsupportedError for a device that is planned but not there yet."""
    if device not in AVAILABLE:
        what = "a simulated GPU" if device == "sim" else "NVIDIA GPUs"
        raise UnsupportedError(
            f"--device {device} ({what}) does not exist yet in this release.", "Run on the processor: --device cpu"
        )
