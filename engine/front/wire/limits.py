"""The bounds within which anybody may use a front."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from engine.base.errors import UsageError

_LISTENERS = 2  # the port and the private socket
_OTHER_FILES = 128  # of the front itself, of models that it looks into, and of links to workers
_FEWEST_CONNECTIONS = 8


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

    @property
    def turned_away(self) -> int:
        """How many connections beyond those that are served are told so at once; others are just closed."""
        return self.connections // 4

    @property
    def accepted_at_once(self) -> int:
        """How many are let in before any of them is looked at."""
        return self.connections // 2

    @property
    def descriptors(self) -> int:
        """How many files a front may have open at once."""
        return _LISTENERS * (self.connections + self.turned_away + self.accepted_at_once) + _OTHER_FILES


def within_descriptors(limits: Limits) -> Limits:
    """`limits` with no more connections than the system lets this process have, after asking it for as many.

    A server that runs out of descriptors can neither take a connection nor turn it away. UsageError where hardly any
    would be left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    fitting = limits.connections * (soft - _OTHER_FILES) // (wanted - _OTHER_FILES)
    if fitting < _FEWEST_CONNECTIONS:
        raise UsageError(f"This system lets the server open {soft} files; it needs {wanted}.", f"ulimit -n {wanted}")
    return replace(limits, connections=fitting)
