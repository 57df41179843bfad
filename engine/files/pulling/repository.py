"""Pulling a repository of the Hub: its weights are converted as they come, and given up file by file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import DoesNotFitError
from engine.base.units import format_size
from engine.files.conversion.convert import convert_job
from engine.files.conversion.converted import Converted
from engine.files.conversion.job import AS_IT_IS, Recipe
from engine.files.conversion.partial import partial_folder
from engine.files.conversion.small_files import small_files
from engine.files.hub.address import HubRepo
from engine.files.hub.repo import Repo, open_repo
from engine.files.pulling.cost import Cost, room_needed
from engine.files.sources.checkpoint import TokenizerWriter
from engine.files.space import SMALL_FILES_BYTES, free_space, used_bytes

PullProgress = Callable[[str, int, int], None]
"""Called with the phase, the bytes done and the bytes there will be."""

FETCH, CONVERT, FETCH_AND_CONVERT = "fetch", "convert", "fetch and convert"

_LOOK_AGAIN_SECONDS = 0.1  # at what came of hundreds of files, while many more pieces are written


@dataclass(frozen=True)
class Follower:
    """Who follows a pull: `announce` hears what it costs before the first byte of weights, and may end it by raising;
    `note` hears sentences that the user should read.
    """

    progress: PullProgress
    announce: Callable[[Cost], None]
    note: Callable[[str], None]


def pull_repo(
    source: HubRepo,
    dest: Path,
    downloads: Path,
    follower: Follower,
    *,
    write_tokenizer: TokenizerWriter,
    recipe: Recipe = AS_IT_IS,
    force: bool = False,
) -> Converted:
    """Converts a repository into the FTW folder `dest` by `recipe`, with `downloads` for what is on its way.

    The disk has to hold what is converted and the files in use: about two of them, whatever the model. Killed at any
    moment, the same call goes on in mid-file. What ends before weights were asked for leaves nothing.

    Errors: those of `open_repo` and `convert_job`; DoesNotFitError before the first byte of weights.
    """
    follower.progress(FETCH, 0, 0)
    repo = open_repo(source, downloads, follower.note, recipe, refresh=force)
    try:
        cost = cost_of(repo)
        small_files(repo.job, write_tokenizer)  # what cannot be had is told before anybody is asked to agree
        follower.announce(cost)
        _require_room(cost, repo, dest)
        written = _Written(repo, follower)
        done = convert_job(
            repo.job,
            dest,
            write_tokenizer=write_tokenizer,
            progress=written,
            force=force,
            removal=f"freetoken rm {dest.name}",
        )
        repo.discard_downloads()
        return done
    except BaseException:
        repo.discard_if_unused()
        raise
    finally:
        repo.close()


def cost_of_repo(
    source: HubRepo,
    folder: Path,
    note: Callable[[str], None],
    recipe: Recipe = AS_IT_IS,
    *,
    write_tokenizer: TokenizerWriter,
) -> Cost:
    """What pulling a repository takes; its headers are read into `folder`, no weights.

    Errors: those of `open_repo` and `small_files`.
    """
    repo = open_repo(source, folder, note, recipe)
    try:
        small_files(repo.job, write_tokenizer)
        return cost_of(repo)
    finally:
        repo.close()


def cost_of(repo: Repo) -> Cost:
    """What pulling an open repository takes."""
    room = room_needed(repo.job.plan, [file.to_fetch for file in repo.files]) + SMALL_FILES_BYTES
    return Cost(fetch=repo.to_fetch - repo.had, disk=repo.job.plan.total_bytes, room=room, had=repo.had)


def _require_room(cost: Cost, repo: Repo, dest: Path) -> None:
    """Raises DoesNotFitError when the disk cannot hold the conversion and the files that it reads at a time."""
    there = used_bytes(partial_folder(dest))
    _, free = free_space(dest)
    short = cost.room - there - repo.on_disk - free
    if short > 0:
        raise DoesNotFitError(
            f"{dest.name} needs {format_size(cost.room)} of disk while it is pulled, {format_size(cost.disk)} of them "
            f"for good; {format_size(free)} are free at {dest.parent}: {format_size(short)} too little.",
            "Free some space, or move the store: FREETOKEN_STORE=/other/disk/models",
        )


class _Written:
    """The progress of a conversion whose source is still coming: bytes fetched and bytes written, of both together."""

    def __init__(self, repo: Repo, follower: Follower) -> None:
        self._repo = repo
        self._written = 0
        self._total = repo.job.plan.total_bytes
        self._phase = FETCH_AND_CONVERT if repo.to_fetch else CONVERT
        self._progress = follower.progress
        self._fetched, self._to_fetch = repo.fetched, repo.to_fetch
        self._looked = time.monotonic()
        repo.ahead.reserved = self._total
        repo.ahead.report = self._look

    def __call__(self, done: int, total: int) -> None:
        self._written = done
        self._repo.ahead.reserved = total - done
        if done == total or time.monotonic() - self._looked >= _LOOK_AGAIN_SECONDS:
            self._look()
        else:
            self._report()

    def _look(self) -> None:
        """Reports what came until now as well."""
        self._looked = time.monotonic()
        self._fetched, self._to_fetch = self._repo.fetched, self._repo.to_fetch
        self._report()

    def _report(self) -> None:
        self._progress(self._phase, self._fetched + self._written, self._to_fetch + self._total)
