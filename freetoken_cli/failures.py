"""The one place that turns an exception into a sentence and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from io import TextIOWrapper
from typing import TextIO

import typer

from engine.base.errors import FreetokenError, is_disk_full
from freetoken_cli.helppage import UsageException
from freetoken_cli.interrupts import Interrupted
from freetoken_cli.terminal import harmless, may_colour, styled


def report(error: BaseException, stderr: TextIO, no_color: bool = False) -> int:
    """Write what happened, why, and what to do next; return the exit code. `FREETOKEN_DEBUG=1` adds the traceback."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if os.environ.get("FREETOKEN_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error, file=stderr)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        error = Interrupted()
    if isinstance(error, Interrupted):
        _say(stderr, error.message, "", no_color, label="")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 1  # whoever read our output has left; nobody is there to be told
    message, remedy, code = _explain(error)
    _say(stderr, message, remedy, no_color)
    return code


def _say(stderr: TextIO, message: str, remedy: str, no_color: bool, label: str = "Error:") -> None:
    head = styled(label, "1;31", may_colour(stderr, os.environ, no_color))
    try:
        # A message may quote a name from a file that somebody else wrote.
        stderr.write(f"{head} {harmless(message)}\n".lstrip(" "))
        if remedy:
            stderr.write(f"{harmless(remedy)}\n")
        stderr.flush()
    except (OSError, ValueError):
        pass  # stderr is closed: the exit code has to say it


def _explain(error: BaseException) -> tuple[str, str, int]:
    """Message, remedy and exit code of any failure."""
    if isinstance(error, FreetokenError):
        return error.message, error.remedy, error.exit_code
    if isinstance(error, UsageException):
        return _usage(error)
    if isinstance(error, MemoryError):
        return "Memory ran out.", "Close other programs, or ask for less: --context, --kv.", 4
    if isinstance(error, OSError):
        return _os_error(error)
    if isinstance(error, ImportError) and "_native" in (error.name or str(error)):
        return (
            "The native module of this installation is missing or of another version.",
            "Install it again: pip install --force-reinstall freetoken-cli",
            1,
        )
    if isinstance(error, ImportError):
        return f"A package is missing or broken: {error}.", "Install again: pip install --upgrade freetoken-cli", 1
    return (
        f"Something went wrong inside freetoken: {type(error).__name__}: {error}".rstrip(": "),
        "Run it again with FREETOKEN_DEBUG=1 to see where, and report it with that text.",
        1,
    )


def _usage(error: BaseException) -> tuple[str, str, int]:
    """Sentence of a usage error as the parser words it, with the page that explains the command."""
    context = error.ctx  # type: ignore[attr-defined]
    path = context.command_path if context is not None else "freetoken"
    return error.format_message(), f"See {path} --help.", 2  # type: ignore[attr-defined]


def _os_error(error: OSError) -> tuple[str, str, int]:
    """Failures of the system that name a file or a resource rather than a mistake of ours."""
    where = f" ({error.filename})" if error.filename else ""
    if is_disk_full(error):
        return f"The disk is full{where}.", "Free some space and run the command again.", 4
    if error.errno == errno.EMFILE:
        return "Too many files are open.", "Raise the limit: ulimit -n 4096", 1
    if error.errno == errno.ENOMEM:
        return f"Memory ran out{where}.", "Close other programs, or ask for less: --context, --kv.", 4
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = "The disk can only be read" if error.errno == errno.EROFS else "Permission denied"
        return f"{reason}{where}.", "Check who may read and write there, or choose another place.", 1
    if error.errno == errno.ENAMETOOLONG:
        return f"A name is too long for the disk{where}.", "Choose a shorter one.", 2
    if isinstance(error, NotADirectoryError):
        return f"A file is where a folder should be{where}.", "Check the path; FREETOKEN_STORE moves the models.", 1
    if isinstance(error, FileNotFoundError):
        return f"No such file or folder{where}.", "Check the path.", 3
    return f"{error.strerror or error}{where}.", "", 1


def open_missing_streams() -> None:
    """Give the null device to standard streams that were closed before we began.

    Otherwise the next file or socket would get such a number, and what is printed would end up in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0)  # noqa: SIM115 - it stays open as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w")  # noqa: SIM115


def make_streams_bear_all_text() -> None:
    """Let characters that a stream's encoding lacks show as question marks: an answer must not end at an accent."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def silence_broken_streams() -> None:
    """Point closed standard streams at the null device, so that flushing them at exit says nothing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, stream.fileno())
            except (OSError, ValueError):
                pass
            finally:
                os.close(null)
