"""What is said of a list of layers that a family cannot follow."""

from __future__ import annotations

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.families.config import Config, Key

OTHER_MODEL = "Use another model, or a release that knows it."


def layer_names(wanted: Key, numbered: tuple[str, ...], config: Config) -> tuple[str, ...]:
    """A list of a name for every layer; some models number the kinds instead, as they stand in `numbered`."""
    listed = config.raw(wanted)
    if isinstance(listed, list) and all(type(item) is int and 0 <= item < len(numbered) for item in listed):
        return tuple(numbered[item] for item in listed)
    return config.texts(wanted)


def undefined_layer(name: str, config: Config) -> UnsupportedError:
    """For a name, or a letter, that stands for no layer of the family."""
    return UnsupportedError(
        f"{config.where} asks for a layer of the type {shortened(name)}, which this model does not define.", OTHER_MODEL
    )


def miscounted_layers(listed: int, count: int, config: Config) -> UnsupportedError:
    """For a list of `listed` layers of a model that has `count`."""
    return UnsupportedError(f"{config.where} lists {listed} types of layers for {count} layers.", OTHER_MODEL)
