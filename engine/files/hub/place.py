"""Which server an address means, without what else it may hold: a name and a password are nobody's to read."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Place:
    """A server: `port` is a number in any case, `path` where on it something lies."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Place:
        """Raises ValueError, which does not repeat the address, for one that is not http or https."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError("no address") from None
        if parts.scheme not in _PORTS or not host:
            raise ValueError("no address of a server")
        return cls(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, parts.path)

    def __str__(self) -> str:
        """As people write it: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address to show."""
        return f"{self.scheme}://{self}{self.path}"

    def is_on(self, other: Place) -> bool:
        """Whether both are the same server."""
        return (self.host, self.port) == (other.host, other.port)
