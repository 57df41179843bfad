"""Models whose layers are a mixer or a feed-forward part each: which layer is which."""

from __future__ import annotations

from engine.spec.check import require
from engine.spec.families.config import Config
from engine.spec.families.layer_lists import undefined_layer
from engine.spec.families.layer_rules import Part, SinglePartRule
from engine.spec.schema import MOST_LAYERS


def parts_of_layers(rule: SinglePartRule, config: Config) -> list[Part]:
    """The part of every layer, as the rule calls it. Raises UnsupportedError for a name or a letter without meaning."""
    listed = config.texts(rule.types) or tuple(config.text(rule.pattern))
    require(0 < len(listed) <= MOST_LAYERS, f"{config.where} lists {len(listed)} layers")
    by_name = {name: part for part, names in rule.meanings.items() for name in names}
    unknown = [name for name in listed if name not in by_name]
    if unknown:
        raise undefined_layer(unknown[0], config)
    return [by_name[name] for name in listed]
