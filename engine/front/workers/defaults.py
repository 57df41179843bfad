"""What a model's folder says about sampling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError
from engine.base.sampling import OF_MODEL, PARAMETERS
from engine.files.untrusted import read_object

GENERATION_CONFIG = "generation_config.json"


def read_defaults(folder: Path) -> Mapping[str, float]:
    """The sampling parameters that generation_config.json sets. CorruptFileError, naming the member, for nonsense."""
    path = folder / GENERATION_CONFIG
    content = _content(path)
    given = {name: content[name] for name in OF_MODEL if content.get(name) is not None}
    for name, value in given.items():
        if PARAMETERS[name].range.whole and isinstance(value, float) and value.is_integer():
            given[name] = value = int(value)  # some tools write 50.0
        if problem := PARAMETERS[name].range.problem(value):
            raise CorruptFileError(f"{path}: {name}: {problem}", "Correct it.")
    return given


def says_how_to_sample(folder: Path) -> bool:
    """Whether the model gives any parameter, or says that it is to be sampled, which then means at temperature 1."""
    content = _content(folder / GENERATION_CONFIG)
    return content.get("do_sample") is True or any(content.get(name) is not None for name in OF_MODEL)


def _content(path: Path) -> dict[str, Any]:
    try:
        return read_object(path) if path.exists() else {}
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or "Correct it, or get the model again.") from None
