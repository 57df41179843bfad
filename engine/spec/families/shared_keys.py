"""Layers that differ from others of their kind: by fields of their own, or by reading another's keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.base.errors import UnsupportedError
from engine.spec.attention import Attention
from engine.spec.check import require
from engine.spec.families.config import Config
from engine.spec.families.layer_lists import OTHER_MODEL
from engine.spec.families.record import SharedKeysRule
from engine.spec.feed_forward import Dense, Moe
from engine.spec.schema import Ffn, Layer

OF_LAYERS, OWN = "per_layer_config", "this_layer"
OWN_FIELDS = ("head_dim", "num_attention_heads", "num_key_value_heads")


def of_layer(config: Config, layer: int) -> Config:
    """The config of a layer, with what it says of that alone under `this_layer`: a key names its fields with a dot."""
    fields = config.inner(OF_LAYERS).inner(str(layer)).data
    for name in fields:
        if name not in OWN_FIELDS:
            raise UnsupportedError(f"{config.where} has another {name} for layer {layer}.", OTHER_MODEL)
    return config.with_fields({OWN: fields}).of_layer(layer)


def with_shared_keys(layers: Sequence[Layer], rule: SharedKeysRule, config: Config) -> list[Layer]:
    """The layers, the last of which read the keys and values of others."""
    count, doubled = config.integer(rule.count), config.flag(rule.doubled)
    require(0 <= count < len(layers), f"{count} of {len(layers)} layers cannot share keys and values")
    first = len(layers) - count
    return [layer if index < first else _sharing(layer, layers[:first], doubled) for index, layer in enumerate(layers)]


def _sharing(layer: Layer, owners: Sequence[Layer], doubled: bool) -> Layer:
    mixer = layer.mixer
    assert isinstance(mixer, Attention), "only attention has keys and values"
    found = [
        i for i, owner in enumerate(owners) if isinstance(owner.mixer, Attention) and owner.mixer.cached == mixer.cached
    ]
    require(bool(found), "a layer shares the keys and values of a kind of layers that there is none of")
    own = replace(mixer, kv_layer=found[-1], v_norm=False, v_from_k=False)
    return replace(layer, mixer=own, ffn=_doubled(layer.ffn) if doubled else layer.ffn)


def _doubled(ffn: Ffn | None) -> Ffn | None:
    """What every token passes, twice as wide."""
    match ffn:
        case Dense():
            return replace(ffn, width=2 * ffn.width)
        case Moe(shared=shared) if shared is not None:
            return replace(ffn, shared=replace(shared, width=2 * shared.width))
    return ffn
