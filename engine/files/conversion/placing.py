"""Putting a finished folder in the place of another and taking folders away, whole to whoever looks meanwhile.

What a kill interrupts here leaves a hidden folder beside the one in question: `.NAME.removed` is rubbish,
`.NAME.replaced` a model whose successor may not have arrived.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.base.errors import FreetokenError
from engine.files.locks import lock_folder

_REMOVED, _REPLACED = ".removed", ".replaced"
LONGEST_DECORATION = f".{_REPLACED}"  # of a destination's name, whatever a conversion makes of it
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV)


def put_in_place(folder: Path, dest: Path, replace: bool) -> None:
    """Gives `folder` the name `dest`; with `replace` a folder or link of that name makes room, and is removed after.

    Where the file system can exchange two folders there is one or the other under the name at any moment. A link goes
    without what it points to. Raises BusyError while another process removes what is there.
    """
    with contextlib.ExitStack() as locks:
        if not (replace and os.path.lexists(dest)):
            folder.rename(dest)
        elif dest.is_symlink() or not dest.is_dir():
            _replace_in_two_steps(folder, dest)
        else:  # nobody takes for an unfinished folder what lies under that name for a moment
            locks.callback(os.close, lock_folder(dest, f"{dest} is being removed by another process."))
            if exchange(folder, dest):
                sync(dest.parent)
                take_away(folder)
            else:
                _replace_in_two_steps(folder, dest)
        sync(dest.parent)
        settle(dest)


def exchange(first: Path, second: Path) -> bool:
    """Swaps two folders in one step; False where kernel or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an older C library
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(first))


def _replace_in_two_steps(folder: Path, dest: Path) -> None:
    dest.rename(_hidden(dest, _REPLACED))
    folder.rename(dest)


def take_away(path: Path) -> None:
    """Removes a folder at once as far as anybody can see; a link goes without what it points to.

    For whoever holds its lock. Raises FreetokenError, naming it, when it cannot be removed.
    """
    _take_away(path, _hidden(path, _REMOVED))


def _take_away(path: Path, doomed: Path) -> None:
    if path.is_symlink():
        path.unlink()
        return
    remove_tree(doomed)
    try:
        path.rename(doomed)
    except OSError as error:
        raise _stays(path, error) from None
    remove_tree(doomed)


def remove_tree(path: Path) -> None:
    """Removes a file, a link or a folder with all in it, if it is there; several may be at it at once."""
    while os.path.lexists(path):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            continue  # another process was quicker with a part of it
        except OSError as error:
            raise _stays(path, error) from None


def settle(dest: Path) -> None:
    """Ends what a kill interrupted at `dest`, whose lock the caller holds, or that of the folder which gets its name.

    A model that was moved away comes back if none has its name, and goes if one has.
    """
    replaced, removed = _hidden(dest, _REPLACED), _hidden(dest, _REMOVED)
    if os.path.lexists(replaced):
        if os.path.lexists(dest):
            _take_away(replaced, removed)
        else:
            replaced.rename(dest)
    remove_tree(removed)


def interrupted(names: Iterable[str]) -> set[str]:
    """The names, without the decoration, of what has to be settled among the `names` in a folder."""
    return {
        name[1:].removesuffix(suffix)
        for name in names
        for suffix in (_REMOVED, _REPLACED)
        if name.startswith(".") and name.endswith(suffix)
    }


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}{suffix}")


def _stays(path: Path, error: OSError) -> FreetokenError:
    return FreetokenError(
        f"{path} cannot be removed: {error.strerror} ({error.filename}).",
        "Look at its owner and rights, then try again.",
    )
