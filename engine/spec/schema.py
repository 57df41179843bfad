"""What a decoder is, as frozen data: a plan of layers, each a mixer and a feed-forward part.

Every class checks itself when it is made. A new kind of mixer or feed-forward part is a new dataclass with a `kind`,
added to `Mixer` or `Ffn`; a file that holds one is refused by name by a release that does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from engine.base.errors import CorruptFileError
from engine.base.plain import from_plain, shortened, to_plain
from engine.spec.attention import Attention, LatentAttention
from engine.spec.check import require, require_positive
from engine.spec.compressed import CompressedAttention
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.recurrent import DeltaNet, LinearAttention, Mamba, Mamba2, ShortConv
from engine.spec.residual import PRE_NORM, RMS_NORM, Norm, Residual
from engine.spec.streams import Streams

REMEDY = "Convert the model again, with this release."
MOST_LAYERS = 1024
GELU_TANH = Activation("gelu_tanh")
PART_LISTS = ("mixers", "ffns", "residuals")  # of a spec in JSON; a layer names one of each

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
    activation: Activation = GELU_TANH  # of the gate

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
