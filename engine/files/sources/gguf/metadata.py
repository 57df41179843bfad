"""What a GGUF file says of a model: numbers and words of its metadata, and what the names of its tensors tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures.record import REQUIRED, Architecture, Key
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
            value = self._same(name, value, key.largest)
        return value if value is None or key.listed else self._plain(name, value)

    def word(self, key: Key, words: Mapping[Any, str]) -> str | list[str]:
        """What one of a few values is called, or each of a list of them."""
        value = self.number(key)
        unknown = [each for each in (value if isinstance(value, list) else [value]) if each not in words]
        if unknown:
            raise UnsupportedError(f"{self._path}: {self._prefix}{key.name} is {unknown[0]}, which is not known.")
        return [words[each] for each in value] if isinstance(value, list) else words[value]

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
    architecture: Architecture, tensors: Mapping[str, SourceTensor], layers: int, path: Path
) -> dict[str, Any]:
    """The config fields that follow from which tensors the layers have."""
    if architecture.kinds and not 0 <= layers <= len(tensors):
        raise CorruptFileError(f"{path} speaks of {layers} layers and holds {len(tensors)} tensors.")
    endings = {name.split(".", 2)[2]: tensor for name, tensor in reversed(list(tensors.items())) if name.count(".") > 1}
    config: dict[str, Any] = {name: ending in endings for name, ending in architecture.flags.items()}
    config |= {name: endings[ending].shape[0] for name, ending in architecture.widths.items() if ending in endings}
    for name, kinds in architecture.kinds.items():
        config[name] = [_kind(kinds, layer, tensors, path) for layer in range(layers)]
    return config


def _kind(kinds: tuple[tuple[str, str], ...], layer: int, tensors: Mapping[str, SourceTensor], path: Path) -> str:
    for ending, kind in kinds:
        if f"blk.{layer}.{ending}" in tensors:
            return kind
    raise CorruptFileError(f"{path} lacks the tensor blk.{layer}.{kinds[0][0]}.")
