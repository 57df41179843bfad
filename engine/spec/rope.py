"""Rotary positions as data. `engine.program.lowering.angles` turns them into frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.spec.check import require


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency is divided by `factor`."""

    kind: ClassVar[str] = "linear"
    factor: float

    def __post_init__(self) -> None:
        require(self.factor > 0, f"a rope factor must be positive, not {self.factor}")


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): slow frequencies are interpolated, fast ones kept, a ramp between them."""

    kind: ClassVar[str] = "yarn"
    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool  # the ramp's ends are rounded outwards to whole dimensions
    magnitude: float  # cosine and sine are multiplied by it ("attention factor")

    def __post_init__(self) -> None:
        require(self.factor > 0, f"a rope factor must be positive, not {self.factor}")
        require(self.original_context > 0, f"original_context must be positive, not {self.original_context}")
        require(
            self.beta_fast >= self.beta_slow > 0,
            f"beta_fast ({self.beta_fast}) must be at least beta_slow ({self.beta_slow}), and both positive",
        )


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, a linear blend between them."""

    kind: ClassVar[str] = "llama3"
    factor: float
    original_context: int
    low_freq_factor: float
    high_freq_factor: float

    def __post_init__(self) -> None:
        require(self.factor > 0, f"a rope factor must be positive, not {self.factor}")
        require(self.original_context > 0, f"original_context must be positive, not {self.original_context}")
        require(
            self.high_freq_factor >= self.low_freq_factor > 0,
            f"high_freq_factor ({self.high_freq_factor}) must be at least low_freq_factor "
            f"({self.low_freq_factor}), and both positive",
        )


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024): one divisor a frequency, one list up to `original_context`, another beyond it."""

    kind: ClassVar[str] = "longrope"
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int
    magnitude: float  # cosine and sine are multiplied by it ("attention factor")
    long_magnitude: float = 0.0  # beyond `original_context`; 0: the same

    def __post_init__(self) -> None:
        require(self.original_context > 0, f"original_context must be positive, not {self.original_context}")
        require(all(factor > 0 for factor in self.short_factors + self.long_factors), "rope factors must be positive")


@dataclass(frozen=True)
class ProportionalScaling:
    """Of a whole head's frequencies the fast `part` is divided by `factor`; the others are zero, and turn nothing."""

    kind: ClassVar[str] = "proportional"
    part: float
    factor: float

    def __post_init__(self) -> None:
        require(0 < self.part <= 1, f"the part of a head that is rotated must be at most one, not {self.part}")
        require(self.factor > 0, f"a rope factor must be positive, not {self.factor}")


@dataclass(frozen=True)
class Growth:
    """Queries at position p are multiplied by `1 + rate * log(1 + floor((p + ahead) / every))` (Nakanishi 2025)."""

    rate: float
    every: int
    ahead: int = 0

    def __post_init__(self) -> None:
        require(self.rate > 0, f"the growth of queries must be positive, not {self.rate}")
        require(self.every > 0, f"queries grow with every so many positions, not every {self.every}")
        require(self.ahead >= 0, f"positions are counted from one that is there, not from {-self.ahead}")


@dataclass(frozen=True)
class Rope:
    """Rotates `dim` values of a head: value i with i + dim/2, or neighbours 2i and 2i + 1 where `pairs` is set."""

    theta: float
    dim: int
    pairs: bool = False
    scaling: LinearScaling | YarnScaling | Llama3Scaling | LongScaling | ProportionalScaling | None = None

    def __post_init__(self) -> None:
        require(self.theta > 1, f"rope_theta must be larger than one, not {self.theta}")
        require(self.dim > 0 and self.dim % 2 == 0, f"rope rotates an even number of values, not {self.dim}")
        if isinstance(self.scaling, LongScaling):
            for factors in (self.scaling.short_factors, self.scaling.long_factors):
                count = len(factors)
                require(count == self.dim // 2, f"longrope has {count} factors for {self.dim // 2} frequencies")
