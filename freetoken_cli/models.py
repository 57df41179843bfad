"""Finding a model by name: in the store, else in the catalogue, from which it is pulled."""

from __future__ import annotations

import os
from pathlib import Path

from engine.base.errors import NotFoundError, UsageError
from engine.base.paths import Paths
from engine.files.manifest import MANIFEST_NAME
from engine.files.store import Store
from freetoken_cli.helppage import did_you_mean
from freetoken_cli.output import Output


def complete_names(incomplete: str) -> list[str]:
    """What a shell completes a model's name to: names in the store and in the catalogue."""
    from engine.files.catalogue import read_catalogue

    paths = Paths.from_environment(os.environ)
    names = {*Store(paths.store).names(), *read_catalogue()}
    return sorted(name for name in names if name.startswith(incomplete))


def ensure_model(paths: Paths, name: str, output: Output) -> str:
    """The name of a model that is complete in the store; one that the catalogue knows is pulled if it is not there.

    Raises NotFoundError with the nearest name of both, UsageError for a path.
    """
    store = Store(paths.store)
    try:
        store.get(name)
        return name
    except UsageError as error:
        remedy = f"To use a checkpoint, take it in first: freetoken pull {name}"
        if (Path(name) / MANIFEST_NAME).exists():
            remedy = f"It is a converted model: move or link it into {paths.store}"
        raise UsageError(error.message, remedy) from None
    except NotFoundError as missing:
        from engine.files.catalogue import read_catalogue
        from freetoken_cli.pulling import pull_into_store

        catalogue = read_catalogue()
        if name in catalogue:
            pull_into_store(name, store, output)
            return name
        suggestion = did_you_mean(name, [*store.names(), *catalogue])
        raise NotFoundError(
            f"{missing.message}{suggestion}",
            "" if suggestion else f"{missing.remedy} freetoken pull takes new ones in.",
        ) from None
