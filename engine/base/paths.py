"""Where freetoken keeps things, by the platform's conventions. `FREETOKEN_STORE` alone moves the models."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import FreetokenError, UsageError

# sun_path holds 108 bytes with its final NUL; a longer socket path cannot be bound.
_LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True)
class Paths:
    """Every place on disk the program uses. Nothing is created by building one.

    store: models, one folder each. config: the settings file. state: logs, REPL history, the machine's profile.
    runtime: the private folder with this store's socket and lock; short enough for a Unix socket.
    """

    store: Path
    config: Path
    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        """The front's private control socket. Each store has its own front, so its name depends on the store."""
        return self.runtime / f"front-{self.store_key}.sock"

    @property
    def lock(self) -> Path:
        """Held by the one front of this store for as long as it lives."""
        return self.runtime / f"front-{self.store_key}.lock"

    @property
    def front_log(self) -> Path:
        """What a front started in the background writes."""
        return self.state / f"front-{self.store_key}.log"

    @property
    def history(self) -> Path:
        """Lines typed at the REPL."""
        return self.state / "history"

    @property
    def profile(self) -> Path:
        """What `freetoken probe` measured on this machine."""
        return self.state / "profile.json"

    @property
    def sessions(self) -> Path:
        """Saved conversations and their contexts, beside the models; no model's name begins with a dot."""
        return self.store / ".sessions"

    @property
    def store_key(self) -> str:
        """Eight hex digits that tell one store from another."""
        return hashlib.sha256(os.fsencode(self.store)).hexdigest()[:8]

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Paths:
        """The paths for this user. `environment` is the process's own, where platformdirs reads the XDG variables."""
        import platformdirs

        store = environment.get("FREETOKEN_STORE", "")
        data = Path(platformdirs.user_data_dir("freetoken", appauthor=False))
        return Paths(
            store=Path(os.path.abspath(typed_path(store))) if store else data / "models",
            config=Path(platformdirs.user_config_dir("freetoken", appauthor=False)) / "config.toml",
            state=Path(platformdirs.user_state_dir("freetoken", appauthor=False)),
            runtime=_runtime_folder(environment),
        )


def typed_path(text: str) -> Path:
    """The path that a person means by `text`; `~name` stays as it is without such a user. UsageError for a NUL."""
    if "\0" in text:
        raise UsageError(f"{text!r:.120} cannot be a path.", "Leave out its NUL character.")
    return Path(os.path.expanduser(text))


def _runtime_folder(environment: Mapping[str, str]) -> Path:
    """A folder for sockets: `XDG_RUNTIME_DIR` where it is set and short, else one of ours in the temporary folder."""
    given = environment.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(given):
        given = ""  # as its specification says; it would mean another folder to a server that runs elsewhere
    if given and len(os.fsencode(given)) + len("/freetoken/front-01234567.sock") <= _LONGEST_SOCKET_PATH:
        return Path(given) / "freetoken"
    # Two users, or two runtime folders of one, must not meet in the shared temporary folder.
    mark = f"-{hashlib.sha256(os.fsencode(given)).hexdigest()[:8]}" if given else ""
    folder = Path(tempfile.gettempdir()) / f"freetoken-{os.getuid()}{mark}"
    longest = len(os.fsencode(folder)) + len("/front-01234567.sock")
    return folder if longest <= _LONGEST_SOCKET_PATH else Path("/tmp") / folder.name


def make_private_folder(folder: Path) -> None:
    """Create `folder` for this user alone (mode 0700), or check that the one that is there is.

    A folder in a shared temporary place could have been laid there by somebody else; a socket in it would be theirs.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat(follow_symlinks=False)
    except OSError as error:
        raise FreetokenError(
            f"The folder {folder} cannot be created: {error.strerror}.",
            "Set XDG_RUNTIME_DIR to a folder that you can write to.",
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FreetokenError(
            f"{folder} is not a folder of this user.", "Remove it, or set XDG_RUNTIME_DIR to a folder of yours."
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
