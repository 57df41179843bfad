"""The folder in which a model's files are kept until it is converted: locked, and true to one commit.

It holds `source.json`, the listing that a pull began with, and `files/`, the files under their paths in the repository.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.base.errors import CorruptFileError, NotFoundError, UsageError
from engine.files.hub.download import unfinished_path
from engine.files.hub.listing import HubFile, Listing
from engine.files.locks import lock_folder
from engine.files.untrusted import read_object

_SOURCE = "source.json"
_WEIGHTS = (".safetensors", ".gguf")


class DownloadsFolder:
    """The folder at `path`, held against other processes until it is closed. Raises BusyError when one holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "files"
        self._is_new = not path.is_dir()
        self._lock = lock_folder(path, f"Another process is downloading into {path}.")

    def saved(self, repo: str, revision: str) -> Listing | None:
        """The listing that an earlier pull of the same revision began with; None for another one or a damaged one."""
        listing = self._begun()
        return listing if listing and (listing.repo, listing.revision) == (repo, revision) else None

    def _begun(self) -> Listing | None:
        try:
            return Listing.from_json(read_object(self.path / _SOURCE), str(self.path / _SOURCE))
        except (NotFoundError, CorruptFileError):
            return None

    def save(self, listing: Listing, replace: bool = False) -> None:
        """Notes what is being fetched, and removes what is there and no part of it.

        Raises UsageError when weights of something else are there, unless `replace`: they may have taken hours.
        """
        if not replace:
            self._refuse_another(listing)
        unfinished = self.path / f"{_SOURCE}.unfinished"
        unfinished.write_text(json.dumps(listing.to_json()))
        unfinished.replace(self.path / _SOURCE)
        self._sweep(listing.files)

    def _refuse_another(self, listing: Listing) -> None:
        begun = self._begun()
        if begun is None or (begun.repo, begun.commit) == (listing.repo, listing.commit):
            return
        weights = [file for file in begun.files if file.path.endswith(_WEIGHTS)]
        if any(
            path.is_file() for file in weights for path in (self.files / file.path, unfinished_path(self.files, file))
        ):
            name = self.path.name
            raise UsageError(
                f"An unfinished pull of {begun.repo} at {begun.revision} has the name {name} already.",
                f"Give this one another with --name, remove that one with: freetoken rm {name}, "
                "or replace it with --force.",
            )

    def _sweep(self, files: Iterable[HubFile]) -> None:
        mine = {self.files / file.path for file in files} | {unfinished_path(self.files, file) for file in files}
        for path in self.files.rglob("*") if self.files.is_dir() else ():
            if path not in mine and not path.is_dir():
                path.unlink()

    def discard(self) -> None:
        """Removes the folder, which stays locked for whoever finds it half gone."""
        shutil.rmtree(self.path, ignore_errors=True)

    def discard_if_new(self) -> None:
        """Removes the folder unless an earlier run had made it: for a pull that failed before it had begun."""
        if self._is_new:
            self.discard()

    def close(self) -> None:
        os.close(self._lock)
