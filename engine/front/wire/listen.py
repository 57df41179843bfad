"""The front's lock, its private socket and its port."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

from engine.base.errors import BusyError, UsageError
from engine.base.paths import make_private_folder

BACKLOG = 128
"""Connections that wait while nobody looks."""


def take_lock(path: Path) -> int | None:
    """Hold the one front's lock until this process ends; its descriptor, or None if another front holds it."""
    make_private_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def listen_private(path: Path) -> socket.socket:
    """A listening Unix socket for this user alone. The lock is held, so one that lies there is a dead front's."""
    make_private_folder(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first moment, not after a chmod.
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"The socket {path} cannot be made: {error.strerror or error}.", "Check who may write there."
        ) from None
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket. BusyError if the port is taken, UsageError for an address that is not this machine's."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(
            f"--host {host} is not an address: {error.strerror}.", "Give a name or address of this machine."
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # So that a port whose last connections are still closing can be had again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, error) from None
    listener.setblocking(False)
    return listener


def _bind_error(host: str, port: int, error: OSError) -> BusyError | UsageError:
    if error.errno == errno.EADDRINUSE:
        return BusyError(f"Port {port} on {host} is taken by another program.", "Choose another with --port.")
    if error.errno == errno.EACCES:
        return UsageError(f"Port {port} may not be opened by this user.", "Choose one above 1023 with --port.")
    return UsageError(
        f"--host {host} --port {port} cannot be opened: {error.strerror}.", "Give an address of this machine."
    )
