"""A model as commands take it: a name in the store, or the path of an FTW folder anywhere."""

from __future__ import annotations

from pathlib import Path

from engine.files.manifest import MANIFEST_NAME
from engine.files.store import Store


def model_folder(store: Store, model: str) -> Path:
    """The folder that `model` means. Raises NotFoundError with the nearest name."""
    path = Path(model).expanduser()
    if "/" in model and (path / MANIFEST_NAME).is_file():
        return path
    return store.get(model)
