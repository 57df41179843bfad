"""The program: a model as a flat list of operations over named buffers. docs/design.md lists every operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.memory.pages import PAGE_TOKENS

Attr = int | float | str | bool

KV_DTYPE, KV_VALUE_BYTES = "f16", 2  # what context memory is kept in
KV_LANES = 16  # keys and values are padded to whole vectors of so many


@dataclass(frozen=True)
class Buffer:
    """One row of `width` values for every token (domain `token`) or every wanted logit row (domain `row`).

    With `base` set the buffer is a view: columns `offset .. offset + width` of the rows of `base`.
    """

    width: int
    domain: str = "token"
    dtype: str = "f32"
    base: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Cache:
    """Keys and values that one operation keeps for every token, or for every so many, in f32 or f16."""

    kv_heads: int
    k_dim: int
    v_dim: int  # 0: values are the first columns of the keys (latent attention)
    reach: int = 0  # positions that a token sees at most, its own among them; 0: all. Such a cache lies in window pages
    every: int = 1  # tokens that one entry stands for: entry i is complete after token (i + 1) * every - 1

    def entry_bytes(self, value_bytes: int) -> int:
        """Bytes of the keys and values of one entry, as the native cache lays them out."""
        padded = sum(-(-dim // KV_LANES) * KV_LANES for dim in (self.k_dim, self.v_dim))
        return self.kv_heads * padded * value_bytes

    def bytes_per_token(self, value_bytes: int) -> int:
        """A token's share of its page, which has room for one entry even where that stands for more tokens."""
        entries = -(-PAGE_TOKENS // self.every)
        return -(-self.entry_bytes(value_bytes) * entries // PAGE_TOKENS)


@dataclass(frozen=True)
class State:
    """What one recurrent operation keeps of a sequence, however long it is: so many f32 values."""

    values: int


@dataclass(frozen=True)
class RopeTable:
    """Angles are `position * inv_freq[i]` in f32; cosine and sine are both multiplied by `scale`.

    With `growth` also by `1 + growth * log(1 + floor((position + growth_ahead) / growth_every))`.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0
    growth: float = 0.0
    growth_every: int = 1
    growth_ahead: int = 0
    every: int = 1  # positions are rounded down to multiples of it


@dataclass(frozen=True)
class Op:
    """One operation. Names in `reads` and `writes` are buffers, names in `weights` are dense tensors ("" is absent)."""

    kind: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    layer: int = -1  # the decoder layer it belongs to; -1 before the first and after the last


def routes_experts(op: Op) -> bool:
    """Whether it chooses the experts of a MoE layer; some routers choose matrices of attention."""
    return op.kind == "route" and not op.attrs.get("aside", False)


@dataclass(frozen=True)
class Program:
    """Everything an executor needs to know of a model besides its weights."""

    buffers: Mapping[str, Buffer]
    ops: tuple[Op, ...]
    caches: tuple[Cache, ...]
    ropes: tuple[RopeTable, ...]
    output: str  # buffer of domain `row` that holds the logits
    vocab_size: int
    residual: str  # the buffer that holds the residual stream
    layer_ends: tuple[int, ...]  # for each decoder layer the number of operations after which it is complete
    states: tuple[State, ...] = ()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token takes in all caches that keep everything."""
        return sum(cache.bytes_per_token(KV_VALUE_BYTES) for cache in self.caches if not cache.reach)

    @property
    def window_bytes_per_token(self) -> int:
        """Bytes that a token takes in all caches that reach back only so far."""
        return sum(cache.bytes_per_token(KV_VALUE_BYTES) for cache in self.caches if cache.reach)

    @property
    def reach(self) -> int:
        """How far back window pages are read: the largest reach of a cache; 0 where none has one."""
        return max((cache.reach for cache in self.caches), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of one sequence."""
        return 4 * sum(state.values for state in self.states)
