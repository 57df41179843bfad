"""A repository of the Hub, open to be converted while its weights come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import CorruptFileError, NetworkError, UnsupportedError
from engine.files.conversion.job import AS_IT_IS, Job, Recipe, plan_job
from engine.files.hub.address import HubRepo
from engine.files.hub.ahead import FetchAhead
from engine.files.hub.cache import cached_listing
from engine.files.hub.folder import DownloadsFolder
from engine.files.hub.listing import MAIN, Listing, fetch_listing, is_commit
from engine.files.hub.opening import Opening
from engine.files.hub.patience import Rules
from engine.files.hub.remote_file import RemoteFile
from engine.files.hub.session import Hub, connect
from engine.files.sources.gguf.checkpoint import split_name

Note = Callable[[str], None]
"""Called with a sentence that the user should read."""

_PATIENT = Rules()
_HASTY = Rules(tries=2)  # where there is something to go on with
_OPENINGS = 2  # headers that make no sense are asked for once more


@dataclass(frozen=True)
class Repo:
    """An open repository: the `job` of converting it, whose weights come when they are acquired.

    Its folder of downloads is locked until it is closed.
    """

    job: Job
    files: tuple[RemoteFile, ...]
    ahead: FetchAhead
    _folder: DownloadsFolder

    @property
    def to_fetch(self) -> int:
        """Bytes of weights that come over the network in all, in this run and those before it."""
        return sum(file.to_fetch for file in self.files)

    @property
    def had(self) -> int:
        """How many of them an earlier run brought and kept."""
        return sum(file.had for file in self.files)

    @property
    def fetched(self) -> int:
        """How many of them are here, or came and were given up again."""
        return sum(file.fetched for file in self.files)

    @property
    def on_disk(self) -> int:
        """Bytes of weights that lie among the downloads now."""
        return sum(file.on_disk for file in self.files)

    def discard_downloads(self) -> None:
        """Removes all that was fetched, while it is still locked."""
        self._folder.discard()

    def discard_if_unused(self) -> None:
        """Removes what was fetched to make a plan, unless weights were asked for, now or in an earlier run."""
        if not self.ahead.began:
            self._folder.discard_if_new()

    def close(self) -> None:
        self.ahead.close()
        self.job.checkpoint.close()
        self._folder.close()


def open_repo(source: HubRepo, downloads: Path, note: Note, recipe: Recipe = AS_IT_IS, refresh: bool = False) -> Repo:
    """Opens the repository that `source` names; its files are kept below `downloads` as long as they are needed.

    A revision is resolved once: a pull that goes on takes the commit that it began with, unless `refresh`. What is in
    the cache of `huggingface_hub` is used from there. No byte of weights but headers is fetched here, and nothing but
    config.json of a model whose family is not known. `recipe` is what is planned to be made of it.

    Errors: NotFoundError, NetworkError, BusyError while another process fetches into `downloads`, UsageError when
    weights of another repository or commit are there, which `refresh` replaces, or when `file` has to choose,
    UnsupportedError for a family, a format or a codec that cannot be converted; those of `plan_job`.
    """
    hub, folder = connect(), DownloadsFolder(downloads)
    try:
        listing = _resolve(hub, folder, source, note, refresh)
        folder.save(listing, replace=refresh)
        return _open(hub, listing, folder, source.file, recipe, _OPENINGS)
    except BaseException:
        folder.discard_if_new()
        folder.close()
        raise


def _open(hub: Hub, listing: Listing, folder: DownloadsFolder, file: str | None, recipe: Recipe, tries: int) -> Repo:
    opening = Opening(hub, listing, folder.files, _PATIENT)
    try:
        job = plan_job(opening.checkpoint(file), recipe)
        return Repo(job, tuple(opening.files), opening.ahead, folder)
    except (CorruptFileError, UnsupportedError):
        try:
            damaged = tries > 1 and opening.forget_damaged_beginnings()
        finally:
            opening.close()
        if not damaged:
            raise
    except BaseException:
        opening.close()
        raise
    return _open(hub, listing, folder, file, recipe, tries - 1)


def is_made_of(source: HubRepo, made_of: str) -> bool:
    """Whether a model whose origin a manifest calls `made_of` came from the repository, file and revision of `source`.

    Any commit will do for `main`, which moves; what another name means is asked of the Hub. Errors: those of
    `fetch_listing`.
    """
    what, _, commit = made_of.partition("@")
    repo, file = "/".join(what.split("/")[:2]), "/".join(what.split("/")[2:])
    wanted = source.file or ""
    split = split_name(wanted.rpartition("/")[2])
    if repo != source.repo or (split[0] if split else wanted).lower() not in file.lower():
        return False
    if source.revision in (MAIN, commit):
        return True
    return not is_commit(source.revision) and fetch_listing(connect(), source.repo, source.revision).commit == commit


def _resolve(hub: Hub, folder: DownloadsFolder, source: HubRepo, note: Note, refresh: bool) -> Listing:
    """The listing to go by: the Hub's, unless a pull of an earlier commit goes on or the Hub cannot be asked."""
    begun = None if refresh else folder.saved(source.repo, source.revision)
    fallback = begun or cached_listing(hub.cache, source.repo, source.revision)
    if hub.offline and fallback is not None:
        return fallback
    try:
        current = fetch_listing(hub, source.repo, source.revision, _HASTY if fallback else _PATIENT)
    except NetworkError as error:
        if fallback is None:
            raise
        note(f"{error.message} Going on with commit {fallback.commit[:12]}, of which files are here.")
        return fallback
    if begun is not None and begun.commit != current.commit:
        note(
            f"{source.repo} has moved on to commit {current.commit[:12]}; this pull goes on with {begun.commit[:12]}, "
            "which it began with. --force takes the new one."
        )
        return begun
    return current
