"""What a decoder is, as frozen data: a plan of layers, each a mixer and a feed-forward part.

Every class checks itself when it is made. A new kind of mixer or feed-forward part is a new dataclass with a `kind`,
added to `Mixer` or `Ffn`; a file that holds one is refused by name by a release that does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from engine.base.errors import CorruptFileError
from engine.base.plain import from_plain, shortened, to_plain
from engine.spec.check import require, require_positive
from engine.spec.compressed import CompressedAttention
from engine.spec.indexer import Indexer
from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv
from engine.spec.residual import PRE_NORM, RMS_NORM, Norm, Residual
from engine.spec.rope import Growth, Rope
from engine.spec.streams import Streams

ACTIVATIONS = ("silu", "clamped_silu", "limited_silu", "relu2", "gelu_tanh", "gelu")
LIMITED = ("clamped_silu", "limited_silu")  # activations that have a limit
QK_NORMS = ("none", "head", "head_after", "unit_after", "full")
REMEDY = "Convert the model again, with this release."
MOST_LAYERS, MOST_EXPERTS = 1024, 4096
PART_LISTS = ("mixers", "ffns", "residuals")  # of a spec in JSON; a layer names one of each
SCORINGS = ("softmax", "sigmoid", "softmax_topk", "sqrt_softplus", "sparse_mixer")


@dataclass(frozen=True)
class Activation:
    """How gate and up become one: `silu(gate) * up`, or its clamped form, which uses `alpha` and `limit`.

    `limited_silu` is silu of `min(gate, limit)`, times up between -limit and limit (DeepSeek-V4). `gelu` and its
    approximation `gelu_tanh` stand in the place of silu. With `relu2` there is no gate: `max(up, 0)^2`.
    """

    name: str = "silu"
    alpha: float = 1.0
    limit: float = 0.0

    def __post_init__(self) -> None:
        require(self.name in ACTIVATIONS, f"the activation must be one of {', '.join(ACTIVATIONS)}, not {self.name}")
        require(self.name not in LIMITED or self.limit > 0, f"{self.name} needs a positive limit, not {self.limit}")

    @property
    def is_gated(self) -> bool:
        """Whether there is a gate beside up."""
        return self.name != "relu2"


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
    gated: bool = False  # the output is multiplied by the sigmoid of a projection, a value by itself
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

    def __post_init__(self) -> None:
        require_positive(
            heads=self.heads,
            kv_lora_rank=self.kv_lora_rank,
            nope_dim=self.nope_dim,
            rope_dim=self.rope_dim,
            v_dim=self.v_dim,
            scale=self.scale,
            norm_eps=self.norm_eps,
            latent_scale=self.latent_scale,
        )
        require(self.q_lora_rank >= 0, f"q_lora_rank must not be negative, not {self.q_lora_rank}")
        sets = 1 if self.indexer is None else self.indexer.sets
        require(sets == 1, f"latent attention has one key for all heads, and cannot see {sets} selections")
        if self.rope is not None:
            require(self.rope.dim == self.rope_dim, f"rope rotates {self.rope.dim} of {self.rope_dim} values")


@dataclass(frozen=True)
class Dense:
    """A feed-forward part that every token passes."""

    kind: ClassVar[str] = "dense"
    width: int
    activation: Activation = Activation()
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(width=self.width)


@dataclass(frozen=True)
class Router:
    """How a token chooses its experts; docs/design.md has the arithmetic under `route`."""

    top_k: int
    scoring: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1  # a group is as good as the sum of this many of its best experts
    normalize: bool = False
    scale: float = 1.0
    linear_bias: bool = False  # added to the logits
    normed: bool = False  # it reads a norm of the stream, divided by the root of its width
    expert_scale: bool = False  # the weight of an expert is multiplied by a learned one, at last
    choice_bias: bool = False  # added to the scores for the choice alone
    jitter: float = 0.0  # of sparse_mixer: how far, as a share, a score may lie below the best and still count
    by_token: bool = False  # a table has the experts of every token id; scores weigh them and choose nothing

    def __post_init__(self) -> None:
        require_positive(
            top_k=self.top_k, groups=self.groups, top_groups=self.top_groups, group_top=self.group_top, scale=self.scale
        )
        require(self.scoring in SCORINGS, f"scoring must be one of {', '.join(SCORINGS)}, not {self.scoring}")
        require(self.top_groups <= self.groups, f"{self.top_groups} of {self.groups} expert groups cannot be chosen")
        require(self.jitter >= 0, f"the jitter of a router must not be negative, not {self.jitter}")
        choosing = self.groups > 1 or self.choice_bias
        require(not (self.by_token and choosing), "experts that a table names cannot compete for the choice")


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer, all of one shape."""

    count: int
    width: int
    activation: Activation = Activation()
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(count=self.count, width=self.width)
        require(self.count <= MOST_EXPERTS, f"{self.count} experts a layer are more than {MOST_EXPERTS}")


@dataclass(frozen=True)
class Shared:
    """The shared experts of one layer, run for every token as one of their joint width.

    Between their matrices stands what stands between those of the routed experts.
    """

    width: int
    gated: bool = False  # their output is multiplied by the sigmoid of one learned projection
    scale: float = 1.0  # of what they add to the routed experts' output

    def __post_init__(self) -> None:
        require_positive(width=self.width)


@dataclass(frozen=True)
class Moe:
    """A router, its experts, and perhaps shared ones beside them.

    With `latent` the routed experts see so many values, which one projection makes of the hidden state and another
    turns back into it; 0: they see the hidden state. With `scaled_input` the router's weight multiplies what the one
    chosen expert sees and not what it says. With `bias` one vector is added to what the routed experts make together.
    `apart`: routed experts read a norm of the stream of their own, and what they and the shared experts make is normed
    for each alone before it is added.

    The router may choose one of `zero` further experts, which cost nothing: they return what they see. With `deferred`
    the routed experts' output is added to the residual stream behind the next layer, where it is ready by then; what is
    shared is added at once (a shortcut, as of LongCat-Flash, arXiv 2509.01322).
    """

    kind: ClassVar[str] = "moe"
    router: Router
    experts: Experts
    shared: Shared | None = None
    latent: int = 0
    scaled_input: bool = False
    apart: bool = False
    zero: int = 0
    deferred: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        router, count = self.router, self.choices
        require(count <= MOST_EXPERTS, f"a router cannot choose among {count} experts")
        require(self.latent >= 0, f"experts cannot see {self.latent} values")
        require(not self.scaled_input or router.top_k == 1, "only one expert a token can see a scaled input")
        require(self.zero >= 0, f"there cannot be {self.zero} experts without computation")
        require(
            not self.deferred or self.shared is not None, "a layer that defers its experts adds shared ones at once"
        )
        require(count % router.groups == 0, f"{count} experts cannot form {router.groups} equal groups")
        reach = count // router.groups * router.top_groups
        require(router.top_k <= reach, f"a token cannot choose {router.top_k} of {reach} experts")
        require(
            router.group_top <= count // router.groups,
            f"a group of {count // router.groups} experts has no {router.group_top} best ones",
        )

    @property
    def choices(self) -> int:
        """Experts that the router chooses among."""
        return self.experts.count + self.zero


Mixer = Attention | LatentAttention | CompressedAttention | DeltaNet | LinearAttention | Mamba | Mamba2 | ShortConv
Ffn = Dense | Moe


@dataclass(frozen=True)
class Layer:
    """One decoder layer: a mixer, then a feed-forward part. Some models have layers of one of the two parts."""

    mixer: Mixer | None
    ffn: Ffn | None
    residual: Residual = PRE_NORM

    def __post_init__(self) -> None:
        require(self.mixer is not None or self.ffn is not None, "a layer must have a mixer or a feed-forward part")
        both = self.mixer is not None and self.ffn is not None
        require(both or not self.residual.is_parallel, "parallel parts must be two")


@dataclass(frozen=True)
class LayerInputs:
    """What every layer adds at its end: `width` values of each token, of a table and of its embedding, gated by the
    stream. `vocab_size` are the rows of the table.
    """

    width: int
    vocab_size: int
    activation: Activation = Activation("gelu_tanh")  # of the gate

    def __post_init__(self) -> None:
        require_positive(width=self.width, vocab_size=self.vocab_size)
        require(self.activation.is_gated, "what a layer adds at its end is gated")


@dataclass(frozen=True)
class Spec:
    """A whole decoder. `family` names the record it came from; only tensor names depend on it."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    norm_eps: float
    context_length: int
    tied_head: bool = False  # logits are computed with the embedding's matrix
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what a mixer or feed-forward part adds to the residual stream
    logit_scale: float = 1.0
    norm: Norm = RMS_NORM
    head_bias: bool = False  # of the logits
    logit_softcap: float = 0.0  # logits become softcap * tanh(logit / softcap); 0: they do not
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None  # None: the residual stream is one
    final_norm_eps: float = 0.0  # of the norm before the head; 0: norm_eps

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=len(self.layers),
            norm_eps=self.norm_eps,
            context_length=self.context_length,
        )
        require(len(self.layers) <= MOST_LAYERS, f"{len(self.layers)} layers are more than {MOST_LAYERS}")
        if self.streams is not None:
            plain = all(layer.residual == PRE_NORM for layer in self.layers) and self.residual_scale == 1
            require(plain, "parts that read several residual streams have one norm before them and add no share of it")
        require(self.final_norm_eps >= 0, f"the last norm cannot have an epsilon of {self.final_norm_eps}")
        require(self.logit_softcap >= 0, f"the softcap of logits must not be negative, not {self.logit_softcap}")
        deferring = [isinstance(layer.ffn, Moe) and layer.ffn.deferred for layer in self.layers]
        taken = not any(here and behind for here, behind in zip(deferring, [*deferring[1:], True], strict=True))
        require(taken, "what a layer defers is added behind the next, which must be there and defer nothing")

        for index, layer in enumerate(self.layers):
            self._check_shared_keys(index, layer.mixer)
        rows = self.vocab_size if self.layer_inputs is None else self.layer_inputs.vocab_size
        require(rows >= self.vocab_size, f"{rows} tokens of {self.vocab_size} have something for every layer")

    def _check_shared_keys(self, index: int, mixer: Mixer | None) -> None:
        """A layer can read the keys of one before that keeps its own, of the same shape and reach."""
        if not isinstance(mixer, Attention) or mixer.kv_layer < 0:
            return
        owner = self.layers[mixer.kv_layer].mixer if mixer.kv_layer < index else None
        fits = isinstance(owner, Attention) and owner.kv_layer < 0 and owner.cached == mixer.cached
        require(fits, f"layer {index} cannot read the keys and values of layer {mixer.kv_layer}")

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The decoder layers that have routed experts, in order."""
        return tuple(index for index, layer in enumerate(self.layers) if isinstance(layer.ffn, Moe))

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values. What layers have in common is written once."""
        mixers = list(dict.fromkeys(layer.mixer for layer in self.layers if layer.mixer))
        ffns = list(dict.fromkeys(layer.ffn for layer in self.layers if layer.ffn))
        residuals = list(dict.fromkeys(layer.residual for layer in self.layers))
        plain = {field.name: to_plain(getattr(self, field.name)) for field in fields(self) if field.name != "layers"}
        plain["mixers"] = to_plain(tuple(mixers))
        plain["ffns"] = to_plain(tuple(ffns))
        plain["residuals"] = to_plain(tuple(residuals))
        plain["layers"] = [
            [
                mixers.index(layer.mixer) if layer.mixer else None,
                ffns.index(layer.ffn) if layer.ffn else None,
                residuals.index(layer.residual),
            ]
            for layer in self.layers
        ]
        return plain

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` wrote.

        Raises CorruptFileError for a missing field, a wrong type or an impossible value, UnsupportedError for a field
        or a kind that this release does not know.
        """
        return from_plain(cls, _with_layers_spelt_out(data), "spec", REMEDY)


def _with_layers_spelt_out(data: Any) -> dict[str, Any]:
    """The JSON of a spec with the mixer and the feed-forward part of every layer in the layer's own place."""
    if not isinstance(data, dict):
        raise CorruptFileError(f"spec must be an object, not {shortened(data)}.", REMEDY)
    data = {"residuals": [to_plain(PRE_NORM)], **data}  # releases that knew one form wrote none
    for name in (*PART_LISTS, "layers"):
        if not isinstance(data.get(name), list):
            raise CorruptFileError(f"spec must have a list of {name}.", REMEDY)
    layers = [_spelt_out(numbers, data, f"spec.layers[{i}]") for i, numbers in enumerate(data["layers"])]
    return {name: value for name, value in data.items() if name not in PART_LISTS} | {"layers": layers}


def _spelt_out(numbers: Any, data: dict[str, Any], where: str) -> dict[str, Any]:
    mixers, ffns, residuals = (data[name] for name in PART_LISTS)
    match numbers:
        case [mixer, ffn, *rest] if _names_one_of(mixers, mixer) and _names_one_of(ffns, ffn) and len(rest) <= 1:
            residual = rest[0] if rest else 0
            if residual is not None and _names_one_of(residuals, residual):
                return {
                    "mixer": None if mixer is None else mixers[mixer],
                    "ffn": None if ffn is None else ffns[ffn],
                    "residual": residuals[residual],
                }
    message = f"{where} must name a mixer and a feed-forward part by number, not {shortened(numbers)}."
    raise CorruptFileError(message, REMEDY)


def _names_one_of(parts: list[Any], number: Any) -> bool:
    """Whether `number` is the place of one of the parts, or None, which stands for none."""
    return number is None or (type(number) is int and 0 <= number < len(parts))
