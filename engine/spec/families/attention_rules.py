"""How config.json describes attention. Data only, of which `engine.spec.families.attention` makes mixers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.families.config import Key, key
from engine.spec.families.indexers import IndexRule

WINDOW = key("sliding_window", default=0)
HEADS = key("this_layer.num_attention_heads", "num_attention_heads", "n_heads")
KV_HEADS = key("num_key_value_heads", default=0)  # 0: as many as heads
HEAD_DIM = key("head_dim", default=0)  # 0: hidden_size / heads
Q_LORA_RANK = key("q_lora_rank", default=0)
KV_LORA_RANK = key("kv_lora_rank")
NOPE_DIM, ROPE_DIM, V_DIM = key("qk_nope_head_dim"), key("qk_rope_head_dim"), key("v_head_dim")
ATTENTION_BIAS = key("attention_bias", default=False)
NO_LAYERS = Key((), ())
LAYER_TYPES = key("layer_types", default=())

SLIDING, FULL = "sliding_attention", "full_attention"
SLIDING_ALL, SLIDING_LATE, SLIDING_EVEN, SLIDING_MOST, SLIDING_LISTED = "all", "late", "even", "most", "listed"


@dataclass(frozen=True)
class RopeRule:
    """`theta` is the default where config.json names none. Without `part` heads are rotated whole, with it that share
    of their first values; `dim` counts these where no share is named. `when` names a field and the value that switches
    it on; None: always on.

    A list `by_layer` gives every layer a theta of its own, 0 where nothing is rotated; where the rule is `nullable`, a
    theta that is null says so of all.
    Where layers of several types have positions of their own, `kind` is the type these are of. In the old form of
    config.json the positions that have `own_theta` are not scaled; the others are described as in any model.
    """

    theta: Key | float = 10000.0
    pairs: Key | bool = False
    part: Key | None = None
    dim: Key | None = None
    when: tuple[str, str] | None = None
    kind: str = ""
    own_theta: Key | None = None
    by_layer: Key = NO_LAYERS
    nullable: bool = False


@dataclass(frozen=True)
class WindowRule:
    """Which layers attend to a sliding window of `size` tokens (absent: none do).

    `typed`: a list `layer_types` decides, layer by layer. Without it `layers` does: all of them, the late ones (from
    `max_window_layers` on), the even ones (the first, the third and so on), most: all but the last of every
    `interval`, or listed: those of a list that has to be there. `before`, where it is there, counts the tokens without
    the one that attends, and wins over `size`.

    With `chunked` the size is that of chunks, which no token sees beyond. A list `marked` of ones, and of zeros where a
    layer sees everything, wins over all of this; `name` is what `layer_types` calls the others.
    The first `first` layers see everything, and are not counted for what the most are. With `ends_full` the last layer
    does, whatever the list says.
    """

    size: Key = WINDOW
    enabled: Key | bool = True
    typed: bool = False
    first: Key | int = 0
    layers: str = SLIDING_ALL
    interval: Key | int = 0
    before: Key | int = 0
    chunked: bool = False
    marked: Key = NO_LAYERS
    name: str = SLIDING
    ends_full: bool = False


@dataclass(frozen=True)
class GrowthRule:
    """Queries that grow with the position, as `engine.spec.rope.Growth` has it, where they are `enabled` to."""

    rate: Key
    every: Key
    ahead: int = 0
    enabled: Key | bool = True


GROWTH = key("rope_parameters.llama_4_scaling_beta", "rope_scaling.llama_4_scaling_beta", default=0.0)
ORIGINAL_CONTEXT = tuple(f"{holder}.original_max_position_embeddings" for holder in ("rope_parameters", "rope_scaling"))
TOLD_GROWTH = GrowthRule(rate=GROWTH, every=key(*ORIGINAL_CONTEXT), enabled=GROWTH)  # as the positions say


@dataclass(frozen=True)
class QueryExpertsRule:
    """Pairs of query and output matrices, of which a token chooses some; the number of heads follows from these."""

    count: Key
    top_k: Key


@dataclass(frozen=True)
class AttentionRule:
    """Grouped-query attention; without `rope` nothing is rotated.

    Scores are multiplied by `scale`; without it they are divided by the root of `score_width`, or else of the head's
    width. `v_dim` is 0 where values are as wide as keys. There is no `qk_norm` unless it is also `normed`.
    """

    heads: Key = HEADS
    kv_heads: Key = KV_HEADS
    head_dim: Key = HEAD_DIM
    v_dim: Key | int = 0
    scale: Key | float | None = None
    value_scale: Key | float = 1.0
    score_width: Key | None = None
    softcap: Key | float = 0.0
    clip: Key | float = 0.0
    qk_norm: str = "none"
    normed: Key | bool = True
    qkv_bias: Key | bool = False
    o_bias: Key | bool = False
    sinks: Key | bool = False
    rope: RopeRule | None = RopeRule()
    window: WindowRule | None = None
    gated: bool = False
    head_gates: Key | bool = False  # or "per-head"
    gate_activation: str = "sigmoid"
    growth: GrowthRule | None = None
    index: IndexRule | None = None
    v_norm: bool = False
    v_from_k: Key | bool = False
    experts: QueryExpertsRule | None = None


@dataclass(frozen=True)
class LatentRule:
    """Multi-head latent attention; without `rope` nothing is rotated.

    `norm_eps` is a constant of most families' model code, not of config.json. With `gated` every head's output has a
    gate. With `scaled_latents` both latents are as long as the hidden state would be: each is multiplied by the root of
    the hidden state's width over its own.
    """

    heads: Key = HEADS
    q_lora_rank: Key = Q_LORA_RANK
    kv_lora_rank: Key = KV_LORA_RANK
    nope_dim: Key = NOPE_DIM
    rope_dim: Key = ROPE_DIM
    v_dim: Key = V_DIM
    bias: Key | bool = ATTENTION_BIAS
    norm_eps: Key | float = 1e-6
    rope: RopeRule | None = RopeRule(pairs=True)
    gated: bool = False
    index: IndexRule | None = None
    scaled_latents: bool = False
    growth: GrowthRule | None = None


@dataclass(frozen=True)
class CompressedRule:
    """Attention to a window and to compressed entries (`engine.spec.compressed`).

    A list `types` says what each layer sees, or a list `ratios` how many tokens its entries stand for. `theta` is that
    of layers without entries. `rope_dim` counts the rotated values of a head, or `rope_share` is their share.
    """

    heads: Key
    head_dim: Key
    q_lora_rank: Key
    out_groups: Key
    out_rank: Key
    window: Key
    norm_eps: Key
    types: Key
    ratios: Key
    sparse_rate: Key
    heavy_rate: Key
    index_heads: Key
    index_head_dim: Key
    index_top_k: Key
    theta: Key
    compress_theta: Key
    rope_dim: Key
    rope_share: Key
