"""What a model's folder says about sampling."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError


@dataclass(frozen=True)
class Defaults:
    """Sampling where a request says nothing: generation_config.json, else what the OpenAI interface promises."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def read_defaults(folder: Path) -> Defaults:
    """The defaults of a model folder. CorruptFileError, naming the member, for values that make no sense."""
    path = folder / "generation_config.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Defaults()
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not JSON: {error}.", "Convert the model again.") from None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} is not a JSON object.", "Convert the model again.")
    standard = Defaults()
    return Defaults(
        temperature=_number(path, content, "temperature", standard.temperature, 0.0, 100.0),
        top_p=_number(path, content, "top_p", standard.top_p, 0.0, 1.0),
        top_k=int(_number(path, content, "top_k", standard.top_k, 0, 2**31)),
        min_p=_number(path, content, "min_p", standard.min_p, 0.0, 1.0),
        repetition_penalty=_number(path, content, "repetition_penalty", standard.repetition_penalty, 0.01, 100.0),
    )


def _number(path: Path, content: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = content.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or not low <= value <= high:
        raise CorruptFileError(f"{path} has {name} {value!r}, not a number from {low:g} to {high:g}.", "Correct it.")
    return float(value)
