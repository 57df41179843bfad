"""What a GGUF file says of a model: numbers and words of its metadata, and what the names of its tensors tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures.record import REQUIRED, WINDOW_WORDS, WINDOWS, Architecture, Key
from engine.files.sources.tensors import SourceTensor


class Metadata:
    """Metadata below the architecture's own name. Every error names the file and the key."""

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self._metadata = metadata
        self._prefix = f"{metadata['general.architecture']}."
        self._path = path

    def number(self, key: Key) -> Any:
        """A number or a flag, or a list of them."""
        name = self._prefix + key.name
        value = self._metadata.get(name, key.default)
        if value is REQUIRED:
            raise CorruptFileError(f"{self._path} lacks the metadata {name}.")
        if key.listed and isinstance(value, list):
            return [self._plain(name, item) for item in value]
        if isinstance(value, list):
            value = value[0] if key.first and value else self._same(name, value, key.largest)
        return value if value is None or key.listed else self._plain(name, value)

    def word(self, key: Key, words: Mapping[Any, Any], layers: int) -> Any:
        """What one of a few values stands for, or each of those of `layers` layers; None where there is none."""
        value = self.number(key)
        if value is None:
            return None
        value = value[:layers] if isinstance(value, list) else value
        unknown = [each for each in (value if isinstance(value, list) else [value]) if each not in words]
        if unknown:
            raise UnsupportedError(f"{self._path}: {self._prefix}{key.name} is {unknown[0]}, which is not known.")
        return [words[each] for each in value] if isinstance(value, list) else words[value]

    def by_window(self, key: Key, windowed: bool, layers: int) -> Any:
        """What the list of a key has for those of `layers` layers that have a window, or for the others.

        One number holds for both; where there is no layer of the kind, so does that of the other.
        """
        value = self.number(replace(key, listed=True))
        if not isinstance(value, list):
            return value
        windows = self.number(WINDOWS)
        if not isinstance(windows, list) or min(len(windows), len(value)) < layers:
            raise CorruptFileError(
                f"{self._path}: {self._prefix}{key.name} differs, and which layers differ is not said."
            )
        found = [each for each, window in zip(value[:layers], windows, strict=False) if bool(window) is windowed]
        return self._same(self._prefix + key.name, found or value[:layers], False)

    def doubled(self, name: str) -> bool:
        """Whether the last of a list is twice the first."""
        value = self.number(Key(name, listed=True))
        return isinstance(value, list) and len(value) > 0 and value[-1] == 2 * value[0]

    def ratio(self, above: str, below: str) -> int:
        """One count divided by another, of which it is a multiple."""
        dividend, divisor = self.number(Key(above)), self.number(Key(below))
        if divisor <= 0 or dividend % divisor:
            raise CorruptFileError(
                f"{self._path}: {self._prefix}{above} is {dividend}, no multiple of {below}, {divisor}."
            )
        return int(dividend // divisor)

    def text(self, name: str) -> str | None:
        value = self._metadata.get(self._prefix + name)
        if value is not None and not isinstance(value, str):
            raise CorruptFileError(f"{self._path}: {self._prefix}{name} is not a text.")
        return value

    def _same(self, name: str, values: list[Any], largest: bool) -> Any:
        """The value that a list holds throughout, but for layers that have none."""
        found = {self._plain(name, value) for value in values}
        if largest and len(found) > 1:
            found.discard(0)
        if len(found) != 1:
            raise UnsupportedError(f"{self._path}: {name} differs from layer to layer.")
        return found.pop()

    def _plain(self, name: str, value: Any) -> Any:
        if type(value) not in (int, float, bool):
            raise CorruptFileError(f"{self._path}: {name} is {value!a:.60}, not a number.")
        return shortest(value) if type(value) is float else value


def shortest(value: float) -> float:
    """The shortest decimal of the f32 that metadata hold: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def from_tensors(
    architecture: Architecture, tensors: Mapping[str, SourceTensor], known: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """The config fields that follow from which tensors the layers have, beside those `known`."""
    layers = known["num_hidden_layers"]
    if (architecture.kinds or architecture.window_pattern) and not 0 <= layers <= len(tensors):
        raise CorruptFileError(f"{path} speaks of {layers} layers and holds {len(tensors)} tensors.")
    endings = {name.split(".", 2)[2]: tensor for name, tensor in reversed(list(tensors.items())) if name.count(".") > 1}
    named = {**endings, **tensors}
    config: dict[str, Any] = {name: ending in named for name, ending in architecture.flags.items()}
    config |= {name: named[ending].shape[0] for name, ending in architecture.widths.items() if ending in named}
    for name, (one, other) in architecture.lacking.items():
        having = [tensor.removesuffix(one) for tensor in tensors if tensor.split(".", 2)[-1] == one]
        config[name] = any(prefix + other not in tensors for prefix in having)
    for name, kinds in architecture.kinds.items():
        config[name] = [_kind(kinds, layer, tensors, path) for layer in range(layers)]
    if architecture.window_pattern and "layer_types" not in known:
        pattern = architecture.window_pattern if known["sliding_window"] else (False,)
        config["layer_types"] = [WINDOW_WORDS[pattern[layer % len(pattern)]] for layer in range(layers)]
    if f"blk.0.{architecture.gates}" in tensors:
        whole = tensors[f"blk.0.{architecture.gates}"].shape[0] == known["num_attention_heads"]
        config["gating"] = "per-head" if whole else "per-element"
    return config


def _kind(kinds: tuple[tuple[str, str], ...], layer: int, tensors: Mapping[str, SourceTensor], path: Path) -> str:
    for ending, kind in kinds:
        if f"blk.{layer}.{ending}" in tensors:
            return kind
    raise CorruptFileError(f"{path} lacks the tensor blk.{layer}.{kinds[0][0]}.")
