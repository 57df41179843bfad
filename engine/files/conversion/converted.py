"""What a conversion has to say when it is done: what was left out, and what requantising the experts cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DIGITS = 6  # of an error: measured in float64, and the same on every machine to far more than these


@dataclass(frozen=True)
class Loss:
    """How far requantised tensors are from what they were: sums of squares, in float64.

    `error` is the sum of (w' - w)^2, `weight` of w^2. `worst` is the largest relative error (rms) of one tensor.
    """

    tensors: int = 0
    error: float = 0.0
    weight: float = 0.0
    worst: float = 0.0
    worst_tensor: str = ""

    @classmethod
    def of(cls, tensor: str, error: float, weight: float) -> Loss:
        """The loss of one tensor."""
        return cls(1, error, weight, _relative(error, weight), tensor)

    @classmethod
    def total(cls, losses: Iterable[Loss]) -> Loss:
        """All of them together, whatever their order; of equally bad tensors the first by name is the worst."""
        losses = sorted(losses, key=lambda loss: (-loss.worst, loss.worst_tensor))
        if not losses:
            return cls()
        return cls(
            sum(loss.tensors for loss in losses),
            math.fsum(loss.error for loss in losses),
            math.fsum(loss.weight for loss in losses),
            losses[0].worst,
            losses[0].worst_tensor,
        )

    @classmethod
    def from_json(cls, value: Any) -> Loss:
        """What `to_json` gave. Raises ValueError for anything else."""
        if not isinstance(value, list) or [type(part) for part in value] != [int, float, float, float, str]:
            raise ValueError("not a loss")
        return cls(*value)

    @property
    def relative(self) -> float:
        """sqrt(sum (w' - w)^2 / sum w^2); 0 for nothing but zeros that stayed zeros."""
        return _relative(self.error, self.weight)

    def to_json(self) -> list[Any]:
        return [self.tensors, self.error, self.weight, self.worst, self.worst_tensor]


def _relative(error: float, weight: float) -> float:
    if not error:
        return 0.0
    return math.sqrt(error / weight) if weight else math.inf


@dataclass(frozen=True)
class Requantised:
    """Experts that were put into another codec on request; errors are relative, root mean square.

    `tensors` counts those that were; with 0 all of them were in `codec` already, and nothing was changed.
    """

    codec: str
    tensors: int
    error: float
    worst_error: float
    worst_tensor: str

    @classmethod
    def from_loss(cls, codec: str, loss: Loss) -> Requantised:
        return cls(codec, loss.tensors, _rounded(loss.relative), _rounded(loss.worst), loss.worst_tensor)

    def sentence(self) -> str:
        """For people."""
        if not self.tensors:
            return f"The experts were in {self.codec} already: nothing was changed."
        return (
            f"{self.tensors} expert tensors are in {self.codec} now, with a relative error (rms) of {self.error:.2%}; "
            f"the worst is {self.worst_tensor} with {self.worst_error:.2%}."
        )


@dataclass(frozen=True)
class Converted:
    """A finished conversion. `left_out` counts the source's tensors without a place in the model, by purpose.

    `lacking` is a sentence about what the source did not have and a model cannot be run without.
    """

    folder: Path
    left_out: Mapping[str, int]
    requantised: Requantised | None = None
    lacking: str = ""

    def notes(self) -> tuple[str, ...]:
        """Sentences for people, about what a conversion that keeps everything would not mention."""
        kinds = ", ".join(
            f"{count} {purpose} tensor{'s' if count > 1 else ''}" for purpose, count in self.left_out.items()
        )
        notes = [f"Left out: {kinds}."] if kinds else []
        if self.requantised:
            notes.append(self.requantised.sentence())
        if self.lacking:
            notes.append(self.lacking)
        return tuple(notes)


def was_requantised(provenance: Mapping[str, Any]) -> bool:
    """Whether experts of the model whose manifest says this were put into another codec than they were published in."""
    requantised = provenance.get("requantised")
    return isinstance(requantised, dict) and bool(requantised.get("tensors"))


def _rounded(error: float) -> float:
    return float(f"{error:.{_DIGITS}g}")
