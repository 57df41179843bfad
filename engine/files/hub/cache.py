"""The cache of `huggingface_hub`, read and never written: what it holds need not come over the network again.

Its layout is `models--OWNER--NAME` with `refs/REVISION` (a file that holds a commit), `snapshots/COMMIT/PATH` (links,
or copies where a system has no links) and `blobs/HASH`, where the hash is the one that the Hub publishes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from engine.files.hub.listing import UNKNOWN_SIZE, HubFile, Listing, is_commit

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def cached_copy(cache: Path, listing: Listing, file: HubFile) -> Path | None:
    """A file of the right size in the cache that claims to be `file`, of whatever commit."""
    folder = _repo_folder(cache, listing.repo)
    candidates = [folder / "snapshots" / listing.commit / file.path]
    if file.digest:
        candidates.append(folder / "blobs" / file.digest)
    for path in candidates:
        if path.is_file() and path.stat().st_size == file.size:
            return path
    return None


def cached_listing(cache: Path, repo: str, revision: str) -> Listing | None:
    """The files of a revision that are in the cache, None without any; for when the Hub cannot be asked.

    Hashes are those that the names of the blobs promise; a copy that is no link has none. A link whose blob is gone
    tells that there is such a file, of UNKNOWN_SIZE.
    """
    folder = _repo_folder(cache, repo)
    commit = _commit(folder, revision)
    if commit is None:
        return None
    snapshot = folder / "snapshots" / commit
    files = tuple(sorted(_files(snapshot), key=lambda file: file.path))
    return Listing(repo, revision, commit, files) if files else None


def _repo_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def _commit(folder: Path, revision: str) -> str | None:
    if is_commit(revision):
        return revision
    ref = folder / "refs" / revision
    if ".." in ref.parts or not ref.is_relative_to(folder) or not ref.is_file():
        return None
    commit = ref.read_bytes()[:41].decode("ascii", "replace").strip()
    return commit if is_commit(commit) else None


def _files(snapshot: Path) -> Iterator[HubFile]:
    for path in snapshot.rglob("*"):
        if path.is_file() or path.is_symlink():
            name = Path(os.readlink(path)).name if path.is_symlink() else ""
            sha256 = name if _SHA256.fullmatch(name) else ""
            git_sha1 = name if is_commit(name) else ""
            size = path.stat().st_size if path.is_file() else UNKNOWN_SIZE
            if size != UNKNOWN_SIZE or not path.exists():
                yield HubFile(path.relative_to(snapshot).as_posix(), size, sha256, git_sha1)
