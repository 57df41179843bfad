"""Mixers that keep keys and values of every token: grouped-query attention and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.spec.check import require, require_positive
from engine.spec.indexer import Indexer
from engine.spec.rope import Growth, Rope

QK_NORMS = ("none", "head", "head_after", "unit_after", "full")
GATE_ACTIVATIONS = ("sigmoid", "softplus")


@dataclass(frozen=True)
class QueryExperts:
    """Pairs of query and output matrices, of which every token chooses some by a router of its own (JetMoe).

    A chosen pair has one query head for every key head; its output is weighed by the softmax over the chosen.
    """

    count: int
    top_k: int

    def __post_init__(self) -> None:
        require_positive(count=self.count, top_k=self.top_k)
        require(self.top_k <= self.count, f"a token cannot choose {self.top_k} of {self.count} query matrices")


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention. A norm called `unit_after` has no weights."""

    kind: ClassVar[str] = "attention"
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # of the scores
    rope: Rope | None  # None: positions are not rotated
    qk_norm: str = "none"  # "head": every head alone, "full": all of a token; behind rope "head_after", "unit_after"
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    sinks: bool = False  # one learned score a head that takes part in the softmax and carries no value
    window: int = 0  # a token sees itself and the window - 1 before it; 0: all
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: they do not
    gated: bool = False  # the output is multiplied by a gate, an activation of a projection
    head_gates: bool = False  # a gate is for a head; else for a value
    gate_activation: str = "sigmoid"
    chunk: int = 0  # a token sees nothing before the last multiple of it, and all after; 0: no such border
    v_dim: int = 0  # of a value head; 0: head_dim
    value_scale: float = 1.0  # values are multiplied by it
    growth: Growth | None = None  # of queries, at last
    clip: float = 0.0  # queries, keys (after their norms) and values are cut to +-clip; 0: they are not
    indexer: Indexer | None = None  # chooses what is seen; None: all within sight is
    v_norm: bool = False  # every value head alone, without weights
    v_from_k: bool = False  # values are what keys are before their norm
    kv_layer: int = -1  # whose keys and values it reads, having none of its own; -1: its own
    experts: QueryExperts | None = None  # make the queries and the output; None: one matrix each for all tokens

    def __post_init__(self) -> None:
        require_positive(heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, scale=self.scale)
        require(self.v_dim >= 0, f"v_dim must not be negative, not {self.v_dim}")
        even = self.heads % self.kv_heads == 0
        require(even, f"{self.heads} heads cannot share {self.kv_heads} key and value heads evenly")
        require(self.qk_norm in QK_NORMS, f"qk_norm must be one of {', '.join(QK_NORMS)}, not {self.qk_norm}")
        known = self.gate_activation in GATE_ACTIVATIONS
        require(known, f"a gate must be one of {', '.join(GATE_ACTIVATIONS)}, not {self.gate_activation}")
        require(self.gated or not self.head_gates, "heads that have gates are gated")
        require(self.window >= 0, f"the attention window must not be negative, not {self.window}")
        require(self.chunk >= 0, f"the attention chunk must not be negative, not {self.chunk}")
        require(self.softcap >= 0, f"the attention softcap must not be negative, not {self.softcap}")
        require(self.clip >= 0, f"the bound of queries, keys and values must not be negative, not {self.clip}")
        if self.indexer is not None:
            require(
                self.indexer.sets in (1, self.kv_heads), f"{self.indexer.sets} selections for {self.kv_heads} heads"
            )
            bounded = self.window or self.chunk or self.kv_layer >= 0
            require(not bounded, "attention has an indexer, or bounds of sight or another's keys, not both")
        require(self.kv_layer >= -1, f"there is no layer {self.kv_layer} to read keys and values of")
        alike = self.v_norm and self.value_dim == self.head_dim
        require(alike or not self.v_from_k, "values that come from keys must be normed, and as wide")
        if self.rope is not None:
            require(self.rope.dim <= self.head_dim, f"rope rotates {self.rope.dim} of {self.head_dim} values")
        if self.experts is not None:
            own = self.heads == self.kv_heads * self.experts.top_k
            require(own, f"{self.experts.top_k} chosen queries for {self.kv_heads} key heads are not {self.heads}")
            by_head = self.q_bias or self.gated or self.sinks or self.indexer is not None or self.kv_layer >= 0
            require(not by_head, "chosen queries have no biases, gates, sinks or indexer, and keys of their layer")

    @property
    def cached(self) -> tuple[int, ...]:
        """What its cache depends on."""
        return self.kv_heads, self.head_dim, self.value_dim, self.window, self.chunk

    @property
    def value_dim(self) -> int:
        """Values of a value head."""
        return self.v_dim or self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): the cache keeps one latent and one rotated key for all heads."""

    kind: ClassVar[str] = "latent_attention"
    heads: int
    q_lora_rank: int  # 0: queries come straight from the hidden state
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    rope: Rope | None  # None: positions are not rotated
    norm_eps: float  # of the norms of the two latents
    bias: bool = False  # of the projections from and to the hidden state, except a direct query's
    gated: bool = False  # every head's output is multiplied by the sigmoid of a projection to one value a head
    indexer: Indexer | None = None  # chooses what is seen, for all heads together; None: all is
    latent_scale: float = 1.0  # of the latent of keys and values, behind its norm
    growth: Growth | None = None  # of queries

    def __post_init__(self) -> None:
        require_positive(
            heads=self.heads,
            kv_lora_rank=self.kv_lora_rank,
            nope_dim=self.nope_dim,
            v_dim=self.v_dim,
            scale=self.scale,
            norm_eps=self.norm_eps,
            latent_scale=self.latent_scale,
        )
        require(self.q_lora_rank >= 0, f"q_lora_rank must not be negative, not {self.q_lora_rank}")
        require(self.rope_dim >= 0, f"rope_dim must not be negative, not {self.rope_dim}")
        sets = 1 if self.indexer is None else self.indexer.sets
        require(sets == 1, f"latent attention has one key for all heads, and cannot see {sets} selections")
        if self.rope is not None:
            require(self.rope.dim == self.rope_dim, f"rope rotates {self.rope.dim} of {self.rope_dim} values")
