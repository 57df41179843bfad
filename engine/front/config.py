"""What a front is told when it starts: one JSON object, described in docs/api.md."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.base.errors import UsageError
from engine.front.wire.limits import Limits

BACKGROUND_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class FrontConfig:
    """Where to listen and how long to keep things. Times in seconds; infinity is for ever.

    `profile` is the file with what was measured of this machine, which need not be there. `port` None: the Unix socket
    alone. `idle_exit`: leave after so long without a model and without a request.
    """

    socket: Path
    lock: Path
    store: Path
    profile: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    api_key: str | None = None
    keep_alive: float = 300.0
    idle_exit: float = BACKGROUND_IDLE_SECONDS
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.port is not None and not self.loopback and not self.api_key:
            raise UsageError(
                f"Listening on {self.host} lets others in, and there is no key.", "Give --api-key, or --host 127.0.0.1."
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the TCP port."""
        return is_loopback(self.host)

    @staticmethod
    def from_json(text: str) -> FrontConfig:
        """The configuration in `text`. UsageError for anything that is not one."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UsageError(f"The front's configuration is not JSON: {error}.") from None
        if not isinstance(content, dict):
            raise UsageError("The front's configuration is not a JSON object.")
        values: dict[str, Any] = {name: value for name, value in content.items() if value is not None}
        # A duration that was sent as null has no end; one that was not sent has its default.
        for name in ("keep_alive", "idle_exit"):
            if name in content:
                values[name] = float("inf") if content[name] is None else float(content[name])
        if "idle_exit" not in content and content.get("port") is not None:
            values["idle_exit"] = float("inf")  # a server that was started on purpose stays
        for name in ("socket", "lock", "store"):
            if not isinstance(values.get(name), str):
                raise UsageError(f"The front's configuration has no {name}.")
            values[name] = Path(values[name])
        if "profile" in values:
            values["profile"] = Path(values["profile"])
        for name in ("allowed_hosts", "allowed_origins"):
            values[name] = tuple(values.get(name, ()))
        try:
            if "limits" in values:
                values["limits"] = Limits(**values["limits"])
            return FrontConfig(**values)
        except TypeError as error:
            raise UsageError(f"The front's configuration is not understood: {error}.") from None


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without port, means this machine."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
