"""The one way in which descriptions of models refuse values that cannot be."""

from __future__ import annotations

from engine.base.errors import CorruptFileError


def require(holds: bool, sentence: str) -> None:
    """Raise CorruptFileError with the sentence unless it holds."""
    if not holds:
        raise CorruptFileError(
            f"The description of the model is inconsistent: {sentence}.", "Check its config.json, or fetch it again."
        )


def require_positive(**numbers: float) -> None:
    """Raise CorruptFileError naming the first of `numbers` that is not above zero."""
    for name, number in numbers.items():
        require(number > 0, f"{name} must be positive, not {number}")
