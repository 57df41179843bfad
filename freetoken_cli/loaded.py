"""Which models the front of a store has loaded, and the errors of commands that want a model loaded, or want it not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine.base.errors import BusyError, NotFoundError
from freetoken_cli.client import Front, ModelState
from freetoken_cli.front_process import health
from freetoken_cli.helppage import did_you_mean


def loaded_models(socket: Path) -> list[ModelState]:
    """What is loaded; nothing where no front runs."""
    return Front(socket).models() if health(socket) is not None else []


def require_loaded(models: Iterable[str], socket: Path, remedy: str) -> None:
    """Raises NotFoundError, with the nearest name, for a model that is not loaded."""
    loaded = [state.name for state in loaded_models(socket)]
    for model in models:
        if model not in loaded:
            raise NotFoundError(f"{model!r} is not loaded.{did_you_mean(model, loaded)}", remedy)


def require_unloaded(models: Iterable[str], socket: Path) -> None:
    """Raises BusyError for a model that is loaded, or that somebody waits for."""
    if health(socket) is None:
        return
    loaded, loading = Front(socket).in_use()
    for model in models:
        if model in loaded:
            raise BusyError(f"{model} is loaded.", f"Unload it first: freetoken stop {model}")
        if model in loading:
            raise BusyError(f"{model} is being loaded.", f"Wait until it is, then: freetoken stop {model}")
