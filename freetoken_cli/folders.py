"""A model as commands take it: a name in the store, or the path of an FTW folder anywhere."""

from __future__ import annotations

import shlex
from pathlib import Path

from engine.base.errors import NotFoundError, UsageError
from engine.base.paths import typed_path
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.store import Store


def model_folder(store: Store, model: str) -> Path:
    """The folder that `model` means; a model of the store wins over a folder here whose name has no slash.

    Raises NotFoundError with the nearest name, or with the way to get the model.
    """
    path = typed_path(model)
    is_model = (path / MANIFEST_NAME).is_file()
    if "/" in model and is_model:
        return path
    try:
        return store.get(model)
    except UsageError:
        from engine.files.pulling.target import looks_like_path

        if not looks_like_path(model):
            raise
        remedy = f"To use a checkpoint, take it in first: freetoken pull {shlex.quote(model)}"
        raise NotFoundError(f"There is no converted model at {path}.", remedy) from None
    except NotFoundError as missing:
        if is_model:  # `convert` prints such a name
            return path
        from engine.files.pulling.catalogue import read_catalogue

        if model not in read_catalogue():
            raise
        raise NotFoundError(missing.message, f"It can be pulled: freetoken pull {model} --dry-run") from None
