"""What is said of a list of layers that a family cannot follow."""

from __future__ import annotations

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.families.config import Config, Key, key

OTHER_MODEL = "Use another model, or a release that knows it."


def layer_names(wanted: Key, numbered: tuple[str, ...], config: Config) -> tuple[str, ...]:
    """A list of a name for every layer; some models number the kinds instead, as they stand in `numbered`."""
    listed = config.raw(wanted)
    if isinstance(listed, list) and all(type(item) is int and 0 <= item < len(numbered) for item in listed):
        return tuple(numbered[item] for item in listed)
    return config.texts(wanted)


def without_next_token(listed: tuple[str, ...], config: Config, count: int) -> tuple[str, ...]:
    """A list of layers without those beyond the last that guess further tokens, which some lists name as well."""
    further = config.integer(key("num_nextn_predict_layers", default=0))
    return listed[:count] if len(listed) == count + further else listed


def undefined_layer(name: str, config: Config) -> UnsupportedError:
    """For a name, or a letter, that stands for no layer of the family."""
    return UnsupportedError(
        f"{config.where} asks for a layer of the type {shortened(name)}, which this model does not define.", OTHER_MODEL
    )


def miscounted_layers(listed: int, count: int, config: Config) -> UnsupportedError:
    """For a list of `listed` layers of a model that has `count`."""
    return UnsupportedError(f"{config.where} lists {listed} types of layers for {count} layers.", OTHER_MODEL)
