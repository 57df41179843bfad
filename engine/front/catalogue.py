"""Which models there are, and what their folders say about sampling."""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.manifest import MANIFEST_NAME


@dataclass(frozen=True)
class Entry:
    """A converted model: its name, its folder and when it was made (Unix seconds)."""

    name: str
    folder: Path
    created: int


class Catalogue:
    """The converted models in a store. Every question looks at the disk again, since commands come and go."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def entries(self) -> list[Entry]:
        """All models, by name."""
        found = []
        for manifest in sorted(self._store.glob(f"*/{MANIFEST_NAME}")):
            folder = manifest.parent
            if not folder.name.startswith("."):
                found.append(Entry(folder.name, folder, int(manifest.stat().st_mtime)))
        return found

    def resolve(self, name: str) -> Entry:
        """The model called `name`. NotFoundError with the nearest name."""
        entries = {entry.name: entry for entry in self.entries()}
        if name in entries:
            return entries[name]
        close = difflib.get_close_matches(name, entries, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Get it with: freetoken pull {name}"
        raise NotFoundError(f"There is no model {name!r} here.", hint)


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
