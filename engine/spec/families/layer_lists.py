"""What is said of a list of layers that a family cannot follow."""

from __future__ import annotations

from engine.base.errors import UnsupportedError
from engine.base.plain import shortened
from engine.spec.families.config import Config

OTHER_MODEL = "Use another model, or a release that knows it."


def undefined_layer(name: str, config: Config) -> UnsupportedError:
    """For a name, or a letter, that stands for no layer of the family."""
    return UnsupportedError(
        f"{config.where} asks for a layer of the type {shortened(name)}, which this model does not define.", OTHER_MODEL
    )


def miscounted_layers(listed: int, count: int, config: Config) -> UnsupportedError:
    """For a list of `listed` layers of a model that has `count`."""
    return UnsupportedError(f"{config.where} lists {listed} types of layers for {count} layers.", OTHER_MODEL)
