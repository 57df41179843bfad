"""Models whose layers are a mixer or a feed-forward part each: which layer is which."""

from __future__ import annotations

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.check import require
from engine.spec.families.config import Config
from engine.spec.families.record import Part, SinglePartRule
from engine.spec.schema import MOST_LAYERS


def parts_of_layers(rule: SinglePartRule, config: Config) -> list[Part]:
    """The part of every layer, as the rule calls it. Raises UnsupportedError for a name or a letter without meaning."""
    listed = config.texts(rule.types) or tuple(config.text(rule.pattern))
    require(0 < len(listed) <= MOST_LAYERS, f"{config.where} lists {len(listed)} layers")
    by_name = {name: part for part, names in rule.meanings.items() for name in names}
    unknown = [name for name in listed if name not in by_name]
    if unknown:
        raise UnsupportedError(
            f"{config.where} asks for a layer of the type {shortened(unknown[0])}, which this model does not define.",
            "Use another model, or a release that knows it.",
        )
    return [by_name[name] for name in listed]
