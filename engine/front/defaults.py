"""What a model's folder says about sampling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.base.errors import CorruptFileError
from engine.base.sampling import OF_MODEL, PARAMETERS
from engine.files.untrusted import read_object


def read_defaults(folder: Path) -> Mapping[str, float]:
    """The sampling parameters that generation_config.json sets. CorruptFileError, naming the member, for nonsense."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    content = read_object(path)
    given = {name: content[name] for name in OF_MODEL if content.get(name) is not None}
    for name, value in given.items():
        if PARAMETERS[name].range.whole and isinstance(value, float) and value.is_integer():
            given[name] = value = int(value)  # some tools write 50.0
        if problem := PARAMETERS[name].range.problem(value):
            raise CorruptFileError(f"{path}: {name}: {problem}", "Correct it.")
    return given
