"""What a model's folder says about sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from engine.base.errors import CorruptFileError
from engine.base.sampling import OF_MODEL, PARAMETERS


def read_defaults(folder: Path) -> Mapping[str, float]:
    """The sampling parameters that generation_config.json sets. CorruptFileError, naming the member, for nonsense."""
    path = folder / "generation_config.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not JSON: {error}.", "Convert the model again.") from None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} is not a JSON object.", "Convert the model again.")
    given = {name: content[name] for name in OF_MODEL if content.get(name) is not None}
    for name, value in given.items():
        if problem := PARAMETERS[name].range.problem(value):
            raise CorruptFileError(f"{path}: {name}: {problem}", "Correct it.")
    return given
