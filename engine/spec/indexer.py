"""What chooses, token by token, what attention looks at (DeepSeek-V3.2, arXiv 2512.02556)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.check import require, require_positive
from engine.spec.rope import Rope

INDEX_NORMS = ("layer", "head")


@dataclass(frozen=True)
class Indexer:
    """Scores all keys before a token by narrow heads of its own; attention sees the `top_k` best blocks of `block`.

    Queries come from what the queries of attention come from, and one key a token from the hidden state. `weighted`:
    heads are rectified and added with weights that the hidden state gives, and all heads of attention see one
    selection; else every head chooses by itself, for a key and value head of attention.
    `norm`: "layer" is a layer norm with biases of the key, "head" a norm by the root mean square of every head of the
    queries and of the key. The first values of heads and keys are rotated.

    With `pooled` a block has one key, once all its tokens are there: the mean of theirs, weighed channel by channel by
    a softmax of a projection and of places. The block under way is seen besides.
    """

    top_k: int
    heads: int
    head_dim: int
    rope: Rope | None  # None: positions are not rotated
    norm_eps: float
    norm: str = "layer"
    weighted: bool = True
    block: int = 1  # tokens
    local: int = 0  # the last blocks, which are seen in any case
    pooled: bool = False
    shared: bool = False  # nothing is computed: attention sees what the last indexer before this layer chose

    def __post_init__(self) -> None:
        require_positive(
            top_k=self.top_k, heads=self.heads, head_dim=self.head_dim, norm_eps=self.norm_eps, block=self.block
        )
        require(self.norm in INDEX_NORMS, f"an indexer's norm must be one of {', '.join(INDEX_NORMS)}, not {self.norm}")
        require(0 <= self.local <= self.top_k, f"{self.local} of {self.top_k} blocks cannot be local")
        alone = self.weighted and self.norm == "layer" and self.block > 1 and not self.local and self.rope is None
        require(alone or not self.pooled, "pools are of several tokens, in one order, for one selection")
        if self.rope is not None:
            require(self.rope.dim <= self.head_dim, f"rope rotates {self.rope.dim} of {self.head_dim} values")

    @property
    def sets(self) -> int:
        """Selections of a token."""
        return 1 if self.weighted else self.heads

    @property
    def numbers(self) -> int:
        """Blocks that one selection names at most."""
        return self.top_k + self.pooled
