"""Opening a repository of the Hub as a checkpoint: small files first, then headers, and weights when asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.base.errors import CorruptFileError, NetworkError
from engine.files.catalogue import HubRepo
from engine.files.checkpoint import Checkpoint, companion_files
from engine.files.gguf_checkpoint import present_gguf
from engine.files.hub.ahead import FetchAhead
from engine.files.hub.cache import cached_copy, cached_listing
from engine.files.hub.choose import GgufChoice, choose_gguf, require_weights
from engine.files.hub.download import Download
from engine.files.hub.folder import DownloadsFolder
from engine.files.hub.hashes import matches
from engine.files.hub.listing import MAIN, HubFile, Listing, fetch_listing, is_commit
from engine.files.hub.patience import Rules
from engine.files.hub.remote_file import RemoteFile
from engine.files.hub.session import Hub, connect
from engine.files.safetensors_folder import CONFIG_NAME
from engine.files.safetensors_header import read_header
from engine.files.safetensors_shards import index_name, parse_index, tensors_of, weights_files
from engine.files.space import free_space
from engine.files.untrusted import MAX_JSON_BYTES, read_object, read_small_file
from engine.spec.families import find_family

Note = Callable[[str], None]
"""Called with a sentence that the user should read."""

_CONNECTIONS = 8  # for small files and headers, of which a large model has hundreds
_HASTY = Rules(tries=2)  # where there is something to go on with

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Tally:
    """What a conversion has yet to write, and whom to tell that bytes came in."""

    def __init__(self) -> None:
        self.unwritten = 0
        self.report: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Repo:
    """An open repository. Its `checkpoint` may be planned at once, and converted: weights come when they are acquired.

    `downloads` is locked until it is closed. `tally` is for whoever converts to keep true.
    """

    listing: Listing
    checkpoint: Checkpoint
    files: tuple[RemoteFile, ...]
    tally: Tally
    _folder: DownloadsFolder
    _ahead: FetchAhead

    @property
    def to_fetch(self) -> int:
        """Bytes of weights that come over the network in all, in this run and those before it."""
        return sum(file.to_fetch for file in self.files)

    @property
    def fetched(self) -> int:
        """How many of them are here, or came and were given up again."""
        return sum(file.fetched for file in self.files)

    @property
    def on_disk(self) -> int:
        """Bytes of weights that lie in `downloads` now."""
        return sum(file.on_disk for file in self.files)

    def discard_downloads(self) -> None:
        """Removes all that was fetched, while it is still locked."""
        self._folder.discard()

    def close(self) -> None:
        self._ahead.close()
        self.checkpoint.close()
        self._folder.close()


def open_repo(source: HubRepo, downloads: Path, note: Note, refresh: bool = False, rules: Rules | None = None) -> Repo:
    """Opens the repository that `source` names; its files are kept below `downloads` as long as they are needed.

    A revision is resolved once: a pull that goes on takes the commit that it began with, unless `refresh`. What is in
    the cache of `huggingface_hub` is used from there. No byte of weights but headers is fetched here, and nothing but
    config.json of a model whose family is not known.

    Errors: NotFoundError, NetworkError, BusyError while another process fetches into `downloads`, UsageError when
    `file` has to choose, UnsupportedError for a family, a format or a codec that cannot be converted.
    """
    hub, folder = connect(), DownloadsFolder(downloads)
    opening: _Opening | None = None
    try:
        listing = _resolve(hub, folder, source, refresh, note, rules or Rules())
        folder.save(listing)
        opening = _Opening(hub, folder, listing, rules or Rules())
        return opening.open(source.file)
    except BaseException:
        if opening is not None:
            opening.stop.set()
        folder.discard_if_new()
        folder.close()
        raise


def is_made_of(source: HubRepo, made_of: str) -> bool:
    """Whether a model whose origin a manifest calls `made_of` came from the repository, file and revision of `source`.

    Any commit will do for `main`, which moves; what another name means is asked of the Hub. Errors: those of
    `fetch_listing`.
    """
    what, _, commit = made_of.partition("@")
    file = what.removeprefix(source.repo).removeprefix("/")
    if what != "/".join(filter(None, (source.repo, file))) or (source.file or "").lower() not in file.lower():
        return False
    if source.revision in (MAIN, commit):
        return True
    return not is_commit(source.revision) and fetch_listing(connect(), source.repo, source.revision).commit == commit


def _resolve(hub: Hub, folder: DownloadsFolder, source: HubRepo, refresh: bool, note: Note, rules: Rules) -> Listing:
    """The listing to go by: the Hub's, unless a pull of an earlier commit goes on or the Hub cannot be asked."""
    begun = None if refresh else folder.saved(source.repo, source.revision)
    fallback = begun or cached_listing(hub.cache, source.repo, source.revision)
    if hub.offline and fallback is not None:
        return fallback
    try:
        current = fetch_listing(hub, source.repo, source.revision, _HASTY if fallback and not hub.offline else rules)
    except NetworkError as error:
        if fallback is None or hub.offline:
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


class _Opening:
    """What it takes to open a repository."""

    def __init__(self, hub: Hub, folder: DownloadsFolder, listing: Listing, rules: Rules) -> None:
        self.stop = threading.Event()
        self._hub = hub
        self._folder = folder
        self._listing = listing
        self._rules = rules
        self._where = listing.repo

    def open(self, file: str | None) -> Repo:
        choice = choose_gguf(self._listing, file)
        tally = Tally()
        return self._gguf(choice, tally) if choice else self._safetensors(tally)

    def _gguf(self, choice: GgufChoice, tally: Tally) -> Repo:
        files, ahead = self._remote_files(choice.parts, tally)
        _in_parallel(lambda file: file.read_bytes(0, 1), files)
        checkpoint = present_gguf(f"{self._where}/{choice.name}@{self._listing.commit}", files)
        return Repo(self._listing, checkpoint, files, tally, self._folder, ahead)

    def _safetensors(self, tally: Tally) -> Repo:
        listing, where = self._listing, self._where
        require_weights(listing)
        config = read_object(self._small(CONFIG_NAME))
        find_family(config)  # raises for one that is not known, before anything else is fetched
        names = [file.path for file in listing.files]
        companions = companion_files(names, where)
        paths = dict(zip(companions, _in_parallel(self._small, companions.values()), strict=True))
        index_file = index_name(names, where)
        index = parse_index(read_small_file(self._small(index_file)), f"{where}/{index_file}") if index_file else None
        weights = [self._known(name) for name in weights_files(names, index, where)]
        files, ahead = self._remote_files(weights, tally)
        headers = _in_parallel(lambda file: read_header(file.read_bytes, file.size, str(file.path)), files)
        checkpoint = Checkpoint(
            name=f"{where}@{listing.commit}",
            config=config,
            tensors=tensors_of(zip(files, headers, strict=True), index, config, where),
            files=files,
            companions=paths,
        )
        return Repo(listing, checkpoint, files, tally, self._folder, ahead)

    def _known(self, path: str) -> HubFile:
        file = self._listing.find(path)
        assert file is not None, path  # names come from the listing
        return file

    def _download(self, file: HubFile) -> Download:
        return Download(self._hub, self._listing, file, self._folder.files, self.stop, self._rules)

    def _small(self, path: str) -> Path:
        """Where a file that is wanted as a whole is; fetched and checked if need be."""
        file = self._known(path)
        if file.size > MAX_JSON_BYTES:
            raise CorruptFileError(
                f"{path} of {self._where} has {file.size} bytes; at most {MAX_JSON_BYTES} make sense."
            )
        cached = cached_copy(self._hub.cache, self._listing, file)
        return cached if cached and matches(cached, file) else self._download(file).finish()

    def _remote_files(self, weights: Sequence[HubFile], tally: Tally) -> tuple[tuple[RemoteFile, ...], FetchAhead]:
        numbers: dict[RemoteFile, int] = {}
        files = tuple(
            RemoteFile(
                self._download(file),
                cached_copy(self._hub.cache, self._listing, file),
                lambda remote: ahead.wait_for(numbers[remote]),
                lambda remote: ahead.release(numbers[remote]),
            )
            for file in weights
        )
        numbers.update((file, number) for number, file in enumerate(files))
        ahead = FetchAhead(files, _Room(self._folder.path, tally), self.stop, lambda: tally.report())
        return files, ahead


class _Room:
    """The disk that downloads lie on, and what a conversion is going to write on it."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self._path = path
        self._tally = tally

    def free(self) -> int:
        return free_space(self._path)[1]

    def reserved(self) -> int:
        return self._tally.unwritten


def _in_parallel(work: Callable[[_In], _Out], things: Iterable[_In]) -> list[_Out]:
    """The results of `work`, in order; the first error ends it."""
    pool = ThreadPoolExecutor(_CONNECTIONS)
    try:
        return list(pool.map(work, things))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
