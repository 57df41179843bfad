"""The local store: a folder with one FTW folder a model."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import FreetokenError, NotFoundError, UnsupportedError, UsageError
from engine.base.nearest import did_you_mean
from engine.base.units import format_size
from engine.files.conversion.partial import PARTIAL_SUFFIX, partial_folder
from engine.files.conversion.placing import interrupted, settle, take_away
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.ftw.opening import Ftw, open_model
from engine.files.locks import lock_folder
from engine.files.space import measure, used_bytes

READY, PARTIAL, BROKEN, UNSUPPORTED = "ready", "partial", "broken", "unsupported"
DOWNLOADS = ".downloads"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Entry:
    """One model of the store, or what an unfinished pull or conversion has left of one.

    `size` is in bytes, of an unfinished one those that are here so far; `modified` in Unix seconds. `format` names the
    codecs of its experts, or of its matrices where it has none. `problem` says why an entry is not ready.
    """

    name: str
    folder: Path
    size: int
    modified: float
    state: str
    format: str = ""
    problem: str = ""


class Store:
    """The models below one folder. Every question looks at the disk again: other processes come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> list[Entry]:
        """All models by name: ready, unfinished, broken, and of another version. An absent store is empty."""
        names = [name for name in _folders(self.root) if not name.startswith(".")]
        unfinished = {name.removesuffix(PARTIAL_SUFFIX) for name in names if name.endswith(PARTIAL_SUFFIX)}
        unfinished |= {name for name in _folders(self.root / DOWNLOADS) if _is_model_name(name)}
        entries = [_entry(self.root / name) for name in names if not name.endswith(PARTIAL_SUFFIX)]
        entries += [self._unfinished(name) for name in unfinished]
        return sorted(entries, key=lambda entry: (entry.name, entry.state == PARTIAL))

    def names(self) -> list[str]:
        """Names of the models that have a manifest, without reading any: quick enough for a completion."""
        return [
            name
            for name in _listdir(self.root)
            if _is_model_name(name) and (self.root / name / MANIFEST_NAME).is_file()
        ]

    def get(self, name: str) -> Path:
        """The folder of the model `name`. Raises NotFoundError with the nearest name, or with the way to finish it."""
        folder = self.destination(name)
        if (folder / MANIFEST_NAME).is_file():
            return folder
        if self.leftovers(name):
            raise NotFoundError(f"The model {name} is not complete.", "Pull or convert it again to finish it.")
        if folder.is_dir():
            raise NotFoundError(f"{folder} is not a model: it has no {MANIFEST_NAME}.", "Remove it, and pull it again.")
        if folder.is_symlink():
            raise _lost(folder)
        raise NotFoundError(
            f"There is no model {name!r}.",
            did_you_mean(name, self.names()) or "freetoken list shows what is there.",
        )

    def destination(self, name: str) -> Path:
        """Where a model of that name is or will be. Raises UsageError for an impossible name."""
        if not _is_model_name(name):
            raise UsageError(
                f"{name!r:.120} cannot be the name of a model.",
                "Use letters, digits, '.', '_' and '-', a letter or digit first, at most 100.",
            )
        return self.root / name

    def downloads(self, name: str) -> Path:
        """Where files for a model are kept until it is converted; never listed."""
        return self.root / DOWNLOADS / self.destination(name).name

    def remove(self, name: str, unfinished_only: bool = False) -> int:
        """Removes a model, finished or not, and what was downloaded for it; returns the bytes that were freed.

        With `unfinished_only` a finished model of that name stays, and what an unfinished pull or conversion has left
        beside it goes. A process that has it open keeps its files until it ends. Errors: NotFoundError; BusyError while
        any of it is being written, and then all of it stays.
        """
        folder = self.destination(name)
        found = self.leftovers(name)
        if not unfinished_only and _is_folder(folder):
            found.append(folder)
        if not found:
            self.require_unfinished(name) if unfinished_only else self.get(name)
        with ExitStack() as locks:
            for path in found:
                if not path.is_symlink():
                    locks.callback(os.close, lock_folder(path, f"{path} is being written by another process."))
            freed = 0
            for path in found:
                freed += 0 if path.is_symlink() else used_bytes(path)
                take_away(path)
        for folder in (self.root, self.root / DOWNLOADS):
            for left in interrupted(_listdir(folder)):
                _settle(folder / left)
        return freed

    def leftovers(self, name: str) -> list[Path]:
        """The folders that an unfinished pull or conversion of a model has left. Raises UsageError as `destination`."""
        folders = (partial_folder(self.destination(name)), self.downloads(name))
        return [folder for folder in folders if _is_folder(folder)]

    def require_unfinished(self, name: str) -> None:
        """Raises NotFoundError when nothing of a model is unfinished."""
        if not self.leftovers(name):
            raise NotFoundError(f"Nothing of {name!r} is unfinished.", "freetoken list shows what is.")

    def unfinished_bytes(self, name: str) -> int:
        """What an unfinished pull or conversion of a model takes of the disk."""
        return sum(used_bytes(folder) for folder in self.leftovers(name))

    def _unfinished(self, name: str) -> Entry:
        partial, downloads = partial_folder(self.root / name), self.downloads(name)
        (converted, changed), (fetched, arrived) = measure(partial), measure(downloads)
        parts = [
            f"{format_size(size)} {what}" for size, what in ((fetched, "fetched"), (converted, "converted")) if size
        ]
        return Entry(
            name,
            partial if partial.is_dir() else downloads,
            converted + fetched,
            max(changed, arrived),
            PARTIAL,
            problem=f"Not complete, {' and '.join(parts) or 'nothing'} so far: "
            f"pull or convert it again to go on, or remove it with freetoken rm {name}.",
        )


def _folders(parent: Path) -> list[str]:
    """Names of the folders in a folder, in order. A file is nobody's, whatever it is called."""
    return [name for name in _listdir(parent) if _is_folder(parent / name)]


def _listdir(folder: Path) -> list[str]:
    """Names in a folder, in order; an absent one is empty."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _is_model_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.endswith(PARTIAL_SUFFIX)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, or a link to one that may have been there: a model on a disk that is not mounted."""
    return os.path.isdir(path) or (path.is_symlink() and not os.path.exists(path))


def _lost(link: Path) -> NotFoundError:
    return NotFoundError(
        f"{link} is a link to {os.readlink(link)}, which cannot be reached.",
        f"Mount that disk, or remove the link with freetoken rm {link.name}.",
    )


def _entry(folder: Path) -> Entry:
    if not os.path.isdir(folder):
        return Entry(folder.name, folder, 0, os.lstat(folder).st_mtime, BROKEN, problem=str(_lost(folder)))
    size, modified = measure(folder)
    try:
        return Entry(folder.name, folder, size, modified, READY, _format(open_model(folder)))
    except UnsupportedError as error:
        return Entry(folder.name, folder, size, modified, UNSUPPORTED, problem=str(error))
    except FreetokenError as error:
        return Entry(folder.name, folder, size, modified, BROKEN, problem=str(error))


def _format(model: Ftw) -> str:
    codecs = [field.shape.codec for bank in model.banks for field in bank.fields if not field.shape.vector]
    if not codecs:
        codecs = [tensor.codec for tensor in model.dense.values() if not tensor.vector]
    return "+".join(dict.fromkeys(codecs))


def _settle(path: Path) -> None:
    """Ends what a kill interrupted at `path`; what another process is at, or cannot be removed, stays as it is."""
    with ExitStack() as locks, suppress(FreetokenError, OSError):
        for holder in (partial_folder(path), path):
            if holder.is_dir() and not holder.is_symlink():
                locks.callback(os.close, lock_folder(holder, f"{holder} is being written by another process."))
        settle(path)
