"""What a repository of the Hub holds at one commit: names, sizes and the hashes that its files must have."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from engine.base.errors import CorruptFileError, NetworkError
from engine.files.hub.patience import Passing, Patience, Rules
from engine.files.hub.session import Hub, request
from engine.files.untrusted import Table, parse_object

_MAX_LISTING_BYTES = 64 << 20
_LARGEST = 1 << 50
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
UNKNOWN_SIZE = -1  # of a file of which only the name is in the cache
MAIN = "main"  # the branch that a repository shows
_SHA1 = re.compile(r"[0-9a-f]{40}", re.ASCII)
_PATIENT = Rules()
_PLAIN_PART = re.compile(r"[^/\\\x00-\x1f]+")


@dataclass(frozen=True)
class HubFile:
    """One file: `path` in the repository, bytes, and what its content must hash to.

    `sha256` is given for files in large-file storage; `git_sha1`, git's hash of a blob, for the others.
    """

    path: str
    size: int
    sha256: str
    git_sha1: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def digest(self) -> str:
        """The hash that counts; also the name of the blob in the cache of `huggingface_hub`."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True)
class Listing:
    """The files of `repo` at `commit`, which `revision` (a branch, a tag or a commit) meant when it was asked for."""

    repo: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]

    def find(self, path: str) -> HubFile | None:
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> Mapping[str, HubFile]:
        return {file.path: file for file in reversed(self.files)}  # of two the first, as in the list

    def to_json(self) -> dict[str, Any]:
        return {
            "repo": self.repo,
            "revision": self.revision,
            "commit": self.commit,
            "files": [asdict(file) for file in self.files],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], where: str) -> Listing:
        """Reads back what `to_json` gave. Raises CorruptFileError, naming `where`."""
        table = Table(dict(value), where)
        files = tuple(
            HubFile(
                file.text("path"),
                file.integer("size", UNKNOWN_SIZE, _LARGEST),
                file.text("sha256"),
                file.text("git_sha1"),
            )
            for file in table.tables("files")
        )
        return Listing(table.text("repo"), table.text("revision"), table.text("commit"), files)


def is_commit(text: str) -> bool:
    """Whether `text` is the full name of a commit, which means the same for ever."""
    return bool(_SHA1.fullmatch(text))


def fetch_listing(hub: Hub, repo: str, revision: str, rules: Rules = _PATIENT) -> Listing:
    """Asks the Hub for the files of a repository.

    Errors: NotFoundError for an unknown repository or revision, NetworkError when the Hub cannot be reached, refuses,
    or answers with something else.
    """
    what = repo if revision == MAIN else f"{repo} at {revision}"
    patience = Patience(what, threading.Event(), rules)
    while True:
        try:
            text = _fetch(hub, hub.api_url(repo, revision), repo, what)
            return _parse(text, repo, revision, f"the answer of {hub.host}")
        except Passing as failure:
            patience.failed(failure)


def _fetch(hub: Hub, url: str, repo: str, what: str) -> bytes:
    text = bytearray()
    with request(hub, url, repo, what) as answer:
        for chunk in answer.chunks:
            text += chunk
            if len(text) > _MAX_LISTING_BYTES:
                raise NetworkError(f"The list of files of {what} was given up: it has more than {len(text)} bytes.")
    return bytes(text)


def _parse(text: bytes, repo: str, revision: str, where: str) -> Listing:
    """Reads an answer. One that was cut, or comes from something in between, may be better the next time.

    Raises Passing for those, NetworkError for one that is whole and makes no sense.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Passing(f"{where} is not valid JSON: {error}") from None
    try:
        table = Table(parse_object(text, where), where)
        commit = table.text("sha")
        files = [_file(entry, where) for entry in table.tables("siblings")]
        if not is_commit(commit):
            raise CorruptFileError(f"{where} names no commit.")
    except CorruptFileError as error:
        raise NetworkError(
            f"The list of files of {repo} cannot be used: {error.message}",
            "Another try would get the same: look at the repository, and at HF_ENDPOINT if it is set.",
        ) from None
    return Listing(repo, revision, commit, tuple(file for file in files if file is not None))


def _file(entry: Table, where: str) -> HubFile | None:
    """One file of the answer; None for one whose name could not be written here.

    Raises CorruptFileError for one that has no size, or nothing to check it by.
    """
    path = entry.text("rfilename")
    if any(not _PLAIN_PART.fullmatch(part) or part in (".", "..") for part in path.split("/")):
        return None
    entry = Table(entry.raw(), f"{where}, of {path},")
    size = entry.integer("size", 0, _LARGEST)
    if "lfs" in entry and entry.raw()["lfs"] is not None:
        sha256 = entry.table("lfs").text("sha256")
        if not _SHA256.fullmatch(sha256):
            raise CorruptFileError(f"{where} has a sha256 of {path} that is none: {sha256!a:.80}.")
        return HubFile(path, size, sha256, "")
    git_sha1 = entry.text("blobId")
    if not is_commit(git_sha1):
        raise CorruptFileError(f"{where} has a git hash of {path} that is none: {git_sha1!a:.80}.")
    return HubFile(path, size, "", git_sha1)
