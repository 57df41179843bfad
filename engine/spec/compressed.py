"""Attention to a window and, beyond it, to entries that each stand for several tokens (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.spec.check import require, require_positive
from engine.spec.rope import Rope


@dataclass(frozen=True)
class EntryIndexer:
    """Chooses `top_k` entries for every token, by scores of narrow heads with entries of their own."""

    heads: int
    head_dim: int
    top_k: int

    def __post_init__(self) -> None:
        require_positive(heads=self.heads, head_dim=self.head_dim, top_k=self.top_k)


@dataclass(frozen=True)
class Compression:
    """Every `rate` tokens become one entry: a mean of their values, weighted channel by channel by a softmax.

    With `overlap` an entry is made of those of the `rate` tokens before as well, which have other values for it.
    """

    rate: int
    overlap: bool = False
    indexer: EntryIndexer | None = None  # None: a token sees every entry that is complete

    def __post_init__(self) -> None:
        require(self.rate > 1, f"an entry must stand for several tokens, not {self.rate}")

    @property
    def series(self) -> int:
        """Values that a token has in each channel: one for its own entry, and perhaps one for the next."""
        return 2 if self.overlap else 1


@dataclass(frozen=True)
class CompressedAttention:
    """Queries through a latent, one head that is key and value alike, and an output through groups of narrow rows.

    The last values of every head are rotated, and those of the output turned back.
    """

    kind: ClassVar[str] = "compressed_attention"
    heads: int
    head_dim: int
    q_lora_rank: int
    out_groups: int  # of heads whose outputs go through `out_rank` values together
    out_rank: int
    window: int
    scale: float  # of the scores
    rope: Rope
    norm_eps: float
    compression: Compression | None = None  # None: the window is all that is seen

    def __post_init__(self) -> None:
        require_positive(
            heads=self.heads,
            head_dim=self.head_dim,
            q_lora_rank=self.q_lora_rank,
            out_groups=self.out_groups,
            out_rank=self.out_rank,
            window=self.window,
            scale=self.scale,
            norm_eps=self.norm_eps,
        )
        require(self.heads % self.out_groups == 0, f"{self.heads} heads cannot form {self.out_groups} groups")
        indexer = self.compression.indexer if self.compression is not None else None
        for width in (self.head_dim, *([indexer.head_dim] if indexer is not None else [])):
            require(self.rope.dim <= width, f"rope rotates {self.rope.dim} of {width} values")
