"""Settings: a flag wins over the environment, the environment over the config file, the file over the default.

`SETTINGS` is the one table of what can be set; `resolve` reads every layer once, at the edge, and says which layer a
bad value came from. Inside the program only the frozen `Config` is passed around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.base.errors import UnsupportedError, UsageError
from engine.base.gpu import missing_for_cuda
from engine.base.nearest import did_you_mean
from engine.base.units import (
    ExpertRoom,
    KvBudget,
    parse_duration,
    parse_experts,
    parse_kv,
    parse_size,
    parse_tokens,
)

ISA_VARIABLE = "FREETOKEN_ISA"  # scalar, avx2 or avx512, for tests: results are the same bits with each
SIM_MEMORY_VARIABLE = "FREETOKEN_SIM_MEMORY"  # bytes of a simulated GPU, as a size: to see how a small one behaves
DEVICES = ("auto", "cpu", "cuda", "sim")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642
DEFAULT_KEEP_ALIVE = 300.0


@dataclass(frozen=True)
class Config:
    """What the user wants. None: not said by anybody, so the engine decides.

    Units: `keep_alive` in seconds (infinity: never unload), `context` and `max_tokens` in tokens. `explicit` names the
    settings that came from a flag: a running worker must match those, and those alone.
    """

    device: str = "auto"
    experts: ExpertRoom | None = None
    context: int | None = None
    kv: KvBudget | None = None
    threads: int | None = None
    max_tokens: int | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keep_alive: float = DEFAULT_KEEP_ALIVE
    explicit: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Setting:
    """One thing that can be set. `parse` turns text into the value of `Config` or raises `UsageError`."""

    name: str
    parse: Callable[[str], Any]
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "FREETOKEN_" + self.name.upper()


def _parse_device(text: str) -> str:
    if text not in DEVICES:
        near = "Did you mean cuda?" if text.lower() in ("gpu", "nvidia") else did_you_mean(text, DEVICES)
        raise UsageError(f"{text!r} is not one of {', '.join(DEVICES)}.", near)
    return text


def _count_parser(low: int, high: int, what: str) -> Callable[[str], int]:
    """A parser of whole numbers within `low .. high`."""

    def parse(text: str) -> int:
        digits = text.strip()
        # Python refuses to read a number of thousands of digits
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or not low <= int(digits) <= high:
            raise UsageError(f"{text!r:.60} is not {what} from {low} to {high}.")
        return int(digits)

    return parse


def _parse_text(text: str) -> str:
    if not text.strip():
        raise UsageError("The value is empty.")
    if not text.strip().isprintable():
        raise UsageError(f"{text!r:.60} has control characters, which no address, name or key can have.")
    return text.strip()


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(_parse_text(name) for name in text.split(","))


SETTINGS: tuple[Setting, ...] = (
    Setting("device", _parse_device, "Where to run: auto, cpu, cuda or sim (a simulated GPU)."),
    Setting("experts", parse_experts, "Room for cached experts on a GPU: 2G, 37%, a number of slots, or 0 for none."),
    Setting("context", parse_tokens, "The longest conversation, in tokens: 8192 or 32k."),
    Setting("kv", parse_kv, "Context memory: 8192 or 32k tokens, 512M or 2GiB, or 40% of what it shares with experts."),
    Setting("threads", _count_parser(1, 4096, "a number of threads"), "Threads that compute."),
    Setting("max_tokens", parse_tokens, "The most tokens to generate."),
    Setting("host", _parse_text, f"The address to listen on; {DEFAULT_HOST} if not said."),
    Setting(
        "port",
        _count_parser(0, 65535, "a port"),
        f"The port to listen on; {DEFAULT_PORT} if not said, 0 takes a free one.",
    ),
    Setting("api_key", _parse_text, "The key that clients of the server must send."),
    Setting("allowed_hosts", _parse_names, "Further names that clients call the server by, with commas between."),
    Setting("allowed_origins", _parse_names, "Further origins whose pages may use it, with commas between."),
    Setting("keep_alive", parse_duration, "How long an idle model stays loaded: 30s, 5m, 0, forever."),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def check_device(device: str) -> None:
    """Raise UnsupportedError for a device that this machine or this installation does not have."""
    missing = missing_for_cuda() if device == "cuda" else None
    if missing is not None:
        raise UnsupportedError(f"--device cuda cannot be had: {missing.reason}.", missing.remedy)


def hidden_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """What tests set for workers that others start: `isa` and `sim_memory` of a `WorkerConfig`.

    UsageError, which names the variable, for a size that is none.
    """
    size = environment.get(SIM_MEMORY_VARIABLE, "")
    try:
        return {"isa": environment.get(ISA_VARIABLE, ""), "sim_memory": parse_size(size) if size else 0}
    except UsageError as error:
        raise UsageError(f"{SIM_MEMORY_VARIABLE}: {error.message}", error.remedy) from None


def setting(name: str) -> Setting:
    """The setting called `name`; a name that is not in the table is a mistake of ours."""
    return _BY_NAME[name]


def read_config_file(path: Path) -> dict[str, str]:
    """The settings in the TOML file at `path` as text; {} when there is no file. Unknown names are refused."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise UsageError(f"The config file {path} cannot be read: it is not a regular file.", "Remove it.")
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(
            f"The config file {path} cannot be read: {error.strerror}.", "Check who may read it."
        ) from error

    import tomllib

    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The config file {path} is not valid TOML: {error}.", "Correct or remove it.") from error
    values: dict[str, str] = {}
    for name, value in table.items():
        if name not in _BY_NAME:
            hint = did_you_mean(name, _BY_NAME) or f"It knows {', '.join(_BY_NAME)}."
            raise UsageError(f"The config file {path} sets {name!r}, which is no setting.", hint)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError(
                f"{name} in {path} must be a string or a number, not {type(value).__name__}.", "Correct it there."
            )
        values[name] = str(value)
    return values


def resolve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], file: Mapping[str, str], file_name: str = ""
) -> Config:
    """The settings in force.

    `flags` holds what was typed (None: not typed), `file` what `read_config_file` gave, `file_name` the path that
    errors name. An empty environment variable counts as unset. Raises `UsageError` that names the layer, the setting
    and the value.
    """
    values: dict[str, Any] = {}
    explicit = set()
    for item in SETTINGS:
        typed = flags.get(item.name)
        if typed is not None:
            values[item.name] = _parsed(item, typed, item.flag)
            explicit.add(item.name)
        elif environment.get(item.variable, ""):
            values[item.name] = _parsed(item, environment[item.variable], item.variable)
        elif item.name in file:
            values[item.name] = _parsed(item, file[item.name], f"{item.name} in {file_name or 'the config file'}")
    return Config(**values, explicit=frozenset(explicit))


def _parsed(item: Setting, text: str, where: str) -> Any:
    try:
        return item.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.remedy) from error
