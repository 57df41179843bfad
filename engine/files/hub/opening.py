"""What it takes to see a checkpoint in a repository: small files first, then headers, of which a plan can be made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from engine.base.collector import no_cycles
from engine.base.errors import CorruptFileError, NetworkError
from engine.files.hub.ahead import FetchAhead
from engine.files.hub.cache import cached_copy
from engine.files.hub.choose import GgufChoice, choose_gguf, require_weights
from engine.files.hub.download import Download
from engine.files.hub.hashes import check
from engine.files.hub.listing import UNKNOWN_SIZE, HubFile, Listing
from engine.files.hub.parallel import in_parallel
from engine.files.hub.patience import Rules
from engine.files.hub.remote_file import RemoteFile
from engine.files.hub.session import Hub
from engine.files.names import CONFIG_NAME
from engine.files.safetensors_header import Entry, read_header
from engine.files.sources.checkpoint import Checkpoint, companion_files
from engine.files.sources.gguf.checkpoint import present_gguf
from engine.files.sources.safetensors.shards import index_name, parse_index, tensors_of, weights_files
from engine.files.space import free_space
from engine.files.untrusted import MAX_JSON_BYTES, read_object, read_small_file
from engine.spec.families import find_family

_CONNECTIONS = 8  # for small files and headers, of which a large model has hundreds


class Opening:
    """One attempt. `files` are the weights, as far as they are known; `ahead` fetches them when they are acquired."""

    def __init__(self, hub: Hub, listing: Listing, folder: Path, rules: Rules) -> None:
        self.files: list[RemoteFile] = []
        self.stop = threading.Event()
        self.ahead = FetchAhead(lambda: free_space(folder), self.stop)
        self._hub = hub
        self._listing = listing
        self._folder = folder
        self._rules = rules

    @no_cycles()
    def checkpoint(self, file: str | None) -> Checkpoint:
        """The checkpoint in the repository, or the GGUF `file` of it. Errors: those of `open_repo`."""
        choice = choose_gguf(self._listing, file)
        return self._gguf(choice) if choice else self._safetensors()

    def forget_damaged_beginnings(self) -> bool:
        """Asks once more for all that was read of the weights; True if some of it came differently and was dropped."""
        return not all(in_parallel(RemoteFile.begins_as_read, self.files, _CONNECTIONS))

    def close(self) -> None:
        """Ends what may still be fetched."""
        self.stop.set()
        for file in self.files:
            file.close()

    def _gguf(self, choice: GgufChoice) -> Checkpoint:
        self._add(choice.parts)
        return present_gguf(f"{self._listing.repo}/{choice.name}@{self._listing.commit}", self.files)

    def _safetensors(self) -> Checkpoint:
        where = self._listing.repo
        require_weights(self._listing)
        config = read_object(self._whole(CONFIG_NAME))
        find_family(config)  # raises for one that is not known, before anything else is fetched
        names = [file.path for file in self._listing.files]
        companions = companion_files(names, where)
        wholes = in_parallel(self._whole, companions.values(), _CONNECTIONS)
        index_file = index_name(names, where)
        index = parse_index(read_small_file(self._whole(index_file)), f"{where}/{index_file}") if index_file else None
        self._add([self._known(name) for name in weights_files(names, index, where)])
        headers = in_parallel(_read_header, self.files, _CONNECTIONS)
        return Checkpoint(
            name=f"{where}@{self._listing.commit}",
            config=config,
            tensors=tensors_of(zip(self.files, headers, strict=True), index, config, where),
            files=tuple(self.files),
            companions=dict(zip(companions, wholes, strict=True)),
        )

    def _add(self, weights: Sequence[HubFile]) -> None:
        for file in weights:
            cached = cached_copy(self._hub.cache, self._listing, file)
            if cached is None:
                self._require_known(file)
            remote = RemoteFile(self._download(file), cached, self.ahead)
            self.ahead.add(remote)
            self.files.append(remote)

    def _known(self, path: str) -> HubFile:
        file = self._listing.find(path)
        assert file is not None, path  # names come from the listing
        return file

    def _download(self, file: HubFile) -> Download:
        return Download(self._hub, self._listing, file, self._folder, self.stop, self._rules)

    def _whole(self, path: str) -> Path:
        """Where a small file is: fetched and checked, unless it is in the cache of huggingface_hub."""
        file = self._known(path)
        if file.size > MAX_JSON_BYTES:
            raise CorruptFileError(
                f"{path} of {self._listing.repo} has {file.size} bytes; at most {MAX_JSON_BYTES} make sense."
            )
        cached = cached_copy(self._hub.cache, self._listing, file)
        if cached is not None:
            with contextlib.suppress(CorruptFileError):
                check(cached, file)
                return cached
        self._require_known(file)
        return self._download(file).finish()

    def _require_known(self, file: HubFile) -> None:
        """Raises NetworkError for a file of which a cache holds no more than the name, while the Hub is not asked."""
        if file.size == UNKNOWN_SIZE:
            what = f"{file.path} of {self._listing.repo} is not on this machine"
            if self._hub.offline:
                raise NetworkError(f"{what}, and HF_HUB_OFFLINE forbids to fetch it.", "Unset HF_HUB_OFFLINE.")
            raise NetworkError(f"{what}, and the Hub does not answer.", "Check the connection and pull again.")


def _read_header(file: RemoteFile) -> dict[str, Entry]:
    return read_header(file.read_bytes, file.size, str(file.path))
