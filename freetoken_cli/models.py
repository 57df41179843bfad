"""Finding a model by name: in the store, else in the catalogue or on the Hub, from where it is pulled."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from engine.base.errors import NotFoundError, UsageError
from engine.base.paths import Paths
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.store import Store
from freetoken_cli.helppage import did_you_mean
from freetoken_cli.output import Output


def names_to_pull() -> list[str]:
    """Names of the catalogue that this release runs."""
    from engine.files.pulling.catalogue import read_catalogue

    return [model.name for model in read_catalogue().values() if model.runs]


def ensure_model(paths: Paths, what: str, output: Output, yes: bool) -> str:
    """The name of a model that is complete in the store; one that can be pulled by name is pulled if it is not there.

    Says first what that takes; a large one a person at a terminal has to agree to unless `yes`. Raises NotFoundError
    with the nearest name, UsageError for a path.
    """
    store = Store(paths.store)
    try:
        store.get(what)
        return what
    except UsageError as error:
        require_no_path(what, paths, error)
    except NotFoundError as missing:
        require_known(what, store, missing)
    from engine.files.pulling.pull import is_there
    from freetoken_cli.pulling import Wanted, asking, pull_into_store

    target = Wanted(what).target()
    if not is_there(store.destination(target.name), target.source):
        pull_into_store(Wanted(what), store, output, asking(output, yes))
    return target.name


def require_no_path(what: str, paths: Paths, error: UsageError) -> None:
    """Raises UsageError, with the way to use it, unless `what` is a repository of the Hub. `error` refused the name."""
    from engine.files.hub.address import is_hub_id
    from engine.files.pulling.target import looks_like_path

    if is_hub_id(what) and not looks_like_path(what):
        return
    raise UsageError(error.message, _how_to_take_in(what, paths.store)) from None


def _how_to_take_in(path: str, store: Path) -> str:
    if (Path(path) / MANIFEST_NAME).exists():
        return f"It is a converted model: move or link it into {store}"
    return f"To use a checkpoint, take it in first: freetoken pull {shlex.quote(path)}"


def require_known(what: str, store: Store, missing: NotFoundError) -> None:
    """Raises NotFoundError, with the nearest name of store and catalogue, unless the catalogue has `what`."""
    from engine.files.pulling.catalogue import WHERE_TO_LOOK, read_catalogue

    catalogue = read_catalogue()
    if what in catalogue:
        return
    if os.path.lexists(store.root / what):  # it is there, and cannot be used
        raise missing
    if Path(what).is_dir():
        raise NotFoundError(missing.message, _how_to_take_in(what, store.root)) from None
    suggestion = did_you_mean(what, [*store.names(), *catalogue])
    raise NotFoundError(
        f"{missing.message}{suggestion}", "" if suggestion else f"{missing.remedy} {WHERE_TO_LOOK}"
    ) from None
