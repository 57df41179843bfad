"""A TCP port for a test."""

from __future__ import annotations

import socket


def find_free_port() -> int:
    """One that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
