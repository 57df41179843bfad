"""The bounds within which anybody may use a front."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Times in seconds."""

    body_bytes: int = 32 * 2**20
    connections: int = 256
    """At once, for each of the port and the private socket."""
    head_seconds: float = 10.0
    """From the first byte of a request, or from a connection's beginning, to the end of its headers."""
    body_seconds: float = 60.0
    """From there to the end of its body."""
    idle_seconds: int = 5
    """That a connection stays open between two requests."""
    unread_seconds: float = 30.0
    """That a client may leave what it is sent unread, once there is more than the machine buffers for it."""
    linger_seconds: float = 5.0
    """That what a client still sends is read and forgotten after its request was refused."""
    silent_seconds: float = 10.0
    """After which a stream that has nothing to say sends a comment."""
