"""The errors a user can meet. Each carries what happened, what to do next, and the exit code of the command line."""

from __future__ import annotations

import errno

ON_THE_CPU = "Run on the processor: --device cpu"
"""The remedy of what a device cannot do: the CPU runs all that this release knows."""


def is_disk_full(error: OSError) -> bool:
    """Whether the disk has no room left, or this user may have no more of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class FreetokenError(Exception):
    """A failure that is told to the user as a sentence. `message` says what and why, `remedy` what to do next."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(FreetokenError):
    """A wrong flag, value or combination; exit code 2."""

    exit_code = 2


class NotFoundError(FreetokenError):
    """A model, file or process that is not there; exit code 3."""

    exit_code = 3


class DoesNotFitError(FreetokenError):
    """Disk, memory or context too small for the request; exit code 4."""

    exit_code = 4


class ContextFullError(DoesNotFitError):
    """A prompt leaves the context no room for an answer."""


class NoRoomError(DoesNotFitError):
    """Memory is short at present: it might fit if something else let go of its own."""


class NetworkError(FreetokenError):
    """A download or a connection failed; exit code 5."""

    exit_code = 5


class CorruptFileError(FreetokenError):
    """A file is short, altered, or not of the format its name promises."""


class UnsupportedError(FreetokenError):
    """A family, codec, device or version that this release does not know."""


class BusyError(FreetokenError):
    """Somebody else holds what this needs: a lock, a port, a resize in progress."""


def error_named(name: str) -> type[FreetokenError] | None:
    """The error of that name, by which another process tells of it; None where there is none."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, FreetokenError) else None
