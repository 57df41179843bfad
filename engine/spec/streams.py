"""A residual stream that is several (manifold-constrained hyper-connections: Xie et al. 2025, arXiv 2512.24880)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.spec.check import require, require_positive
from engine.spec.wanted import Wanted, vector

MOST_STREAMS = 8


@dataclass(frozen=True)
class Streams:
    """Before each part of a layer `count` streams are collapsed to one, which the part reads; after it every stream is
    a mixture of all and a share of what the part made. A projection of all streams gives the weights.

    The mixture's rows and columns are brought to a sum of one by `iterations` of Sinkhorn and Knopp; `eps` keeps its
    divisions from zero. At the end a projection weighs the streams, or their mean is taken.
    """

    count: int
    iterations: int
    eps: float
    weighed_at_the_end: bool = True

    def __post_init__(self) -> None:
        require_positive(streams=self.count, iterations=self.iterations, eps=self.eps)
        require(self.count <= MOST_STREAMS, f"{self.count} residual streams are more than {MOST_STREAMS}")

    @property
    def weights(self) -> int:
        """Values of a token that mix its streams around one part."""
        return self.count * (2 + self.count)


def part_tensors(streams: Streams, part: str, hidden: int) -> Iterator[Wanted]:
    """What mixes the streams around a part of a layer, "attn" or "ffn"."""
    yield Wanted(f"{part}_mix", streams.weights, streams.count * hidden)
    yield vector(f"{part}_mix_base", streams.weights)
    yield vector(f"{part}_mix_scale", 3)


def head_tensors(streams: Streams, hidden: int) -> Iterator[Wanted]:
    """What collapses the streams at the end."""
    if not streams.weighed_at_the_end:
        return
    yield Wanted("head_mix", streams.count, streams.count * hidden)
    yield vector("head_mix_base", streams.count)
    yield vector("head_mix_scale", 1)
