"""Finding a model by name: in the store, or in the catalogue, from which it is pulled."""

from __future__ import annotations

import os

from engine.base.errors import NotFoundError
from engine.base.paths import Paths
from freetoken_cli.helppage import did_you_mean
from freetoken_cli.output import Output

MANIFEST = "ftw.json"


def stored_names(paths: Paths) -> list[str]:
    """Names of the models in the store, in order."""
    try:
        entries = sorted(os.scandir(paths.store), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    return [entry.name for entry in entries if os.path.exists(os.path.join(entry.path, MANIFEST))]


def known_names() -> list[str]:
    """What a shell completes: names in the store and in the catalogue."""
    paths = Paths.from_environment(os.environ)
    return stored_names(paths)


def ensure_model(paths: Paths, name: str, output: Output) -> str:
    """The name of a model that is in the store."""
    stored = stored_names(paths)
    if name in stored:
        return name
    raise NotFoundError(
        f"There is no model {name!r}.{did_you_mean(name, stored)}", "freetoken list shows what is there."
    )
