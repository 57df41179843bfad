"""The profile: what `freetoken probe` measured on this machine, kept as one JSON file.

A profile belongs to one machine and one release of the kernels. Read on another machine, or after the memory limit or
the kernels have changed, it is refused rather than believed.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from engine.base.errors import (
    CorruptFileError,
    DoesNotFitError,
    FreetokenError,
    NotFoundError,
    UnsupportedError,
    is_disk_full,
)
from engine.base.plain import from_plain, to_plain

PROFILE_VERSION = 3
_GIB = 1 << 30


@dataclass(frozen=True)
class Rate:
    """The median of `samples` measurements and their range; in a profile all are GB/s (1e9 bytes a second)."""

    median: float
    low: float
    high: float
    samples: int

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.median, self.low, self.high)):
            raise ValueError("a rate must be finite")
        if not 0 < self.low <= self.median <= self.high or self.samples < 1:
            raise ValueError(f"not a rate: {self.low} <= {self.median} <= {self.high} of {self.samples} samples")

    @staticmethod
    def of(samples: Sequence[float]) -> Rate:
        """The summary of at least one positive sample."""
        return Rate(median(samples), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class ReadRate:
    """Memory read bandwidth with so many threads."""

    threads: int
    rate: Rate


@dataclass(frozen=True)
class ExpertRate:
    """B_H of one codec: bytes of expert records executed a second at decode, by the real kernels.

    `share` is that rate divided by what plain read loops just before and after it reached; it is no rate but a ratio.
    """

    codec: str
    hidden_size: int
    intermediate_size: int
    record_bytes: int
    threads: int
    rate: Rate
    share: Rate


@dataclass(frozen=True)
class Machine:
    """What a profile is valid for. `memory_gib` is rounded: a reboot moves the exact number by a few megabytes."""

    cpu: str
    usable_cores: int
    memory_gib: int
    kernels: str  # instruction set of the kernels
    release: str  # of freetoken, whose kernels they are

    @staticmethod
    def describe(cpu: str, usable_cores: int, memory_bytes: int, kernels: str, release: str) -> Machine:
        """The machine with this processor and this many bytes of memory."""
        return Machine(cpu, usable_cores, round(memory_bytes / _GIB), kernels, release)


@dataclass(frozen=True)
class LinkRate:
    """B_P at one size of records."""

    record_bytes: int
    rate: Rate


@dataclass(frozen=True)
class SharedRun:
    """One division of misses, measured: seconds until the fills and until the CPU had ended; 0 of an empty branch."""

    misses: int
    fills: int
    fill_seconds: float
    cpu_seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.fills <= self.misses or self.misses < 1:
            raise ValueError(f"{self.fills} fills of {self.misses} misses")
        for records, seconds in ((self.fills, self.fill_seconds), (self.misses - self.fills, self.cpu_seconds)):
            if not (0 < seconds < math.inf if records else seconds == 0):
                raise ValueError(f"{records} records in {seconds} seconds")


@dataclass(frozen=True)
class Profile:
    """Everything measured.

    On a device `device` is its name and `uuid` its own, `links` are B_P of each size of records, and `runs` are fills
    and experts alone and at the same time, of records of `record_bytes`, whose B_P is `link`. None on the cpu.
    """

    machine: Machine
    measured_at: str  # UTC, ISO 8601
    reads: tuple[ReadRate, ...]
    experts: tuple[ExpertRate, ...]
    link: Rate | None = None
    device: str = "cpu"
    uuid: str = ""
    record_bytes: int = 0
    links: tuple[LinkRate, ...] = ()
    runs: tuple[SharedRun, ...] = ()

    def __post_init__(self) -> None:
        if not self.reads:
            raise ValueError("it has no read rates")
        alone = {run.fills == 0 for run in self.runs if run.fills in (0, run.misses)}
        if self.runs and len(alone) < 2:
            raise ValueError("it has no runs of each branch alone")
        if bool(self.runs) != bool(self.uuid):
            raise ValueError("runs and a device belong together")

    def to_json(self) -> dict[str, Any]:
        """Plain data with stable keys and a version."""
        return {"version": PROFILE_VERSION, **to_plain(self)}

    @staticmethod
    def from_json(data: Any) -> Profile:
        """The inverse of `to_json`; raises FreetokenError or ValueError where a key or a value is wrong."""
        if not isinstance(data, dict) or data.get("version") != PROFILE_VERSION:
            raise ValueError("not a profile of this version")
        values = {name: value for name, value in data.items() if name != "version"}
        return from_plain(Profile, values, "profile", _remedy(""))


def save_profile(profile: Profile, path: Path) -> None:
    """Write the profile so that a reader sees the old one or the new one, never a part.

    Raises DoesNotFitError when the disk is full, FreetokenError when the folder cannot be written; the old profile
    then stands.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(profile.to_json(), file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        full = is_disk_full(error)
        raise (DoesNotFitError if full else FreetokenError)(
            f"The profile could not be written to {path}: {error.strerror}.",
            "Free some space." if full else "Check who may write there.",
        ) from error


def profile_of(path: Path, device: str) -> Path:
    """Where the profile of a device is kept, beside that of the cpu at `path`."""
    return path if device == "cpu" else path.with_stem(f"{path.stem}-{device}")


def load_profile(path: Path, machine: Machine, uuid: str = "") -> Profile:
    """The profile at `path`, if it is one of this machine and these kernels, and of the device `uuid`.

    Raises NotFoundError (no file), CorruptFileError (not a profile), UnsupportedError (another version) and
    FreetokenError (another machine, other kernels, or a file that cannot be read); each names the remedy.
    """
    remedy = _remedy(uuid)
    if path.exists() and not path.is_file():  # a pipe would be waited for without end
        raise CorruptFileError(f"The profile {path} is damaged: it is no regular file.", f"Remove it. {remedy}")
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        what = "device" if uuid else "machine"
        raise NotFoundError(f"This {what} has no profile yet ({path}).", remedy) from error
    except OSError as error:
        raise FreetokenError(f"The profile {path} cannot be read: {error.strerror}.", remedy) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"The profile {path} is damaged: it is not JSON.", remedy) from error
    if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] != PROFILE_VERSION:
        raise UnsupportedError(
            f"The profile {path} has version {data['version']}; this release reads version {PROFILE_VERSION}.", remedy
        )
    try:
        profile = Profile.from_json(data)
    except ValueError as error:
        raise CorruptFileError(f"The profile {path} is damaged: {error}.", remedy) from error
    except FreetokenError as error:
        raise CorruptFileError(f"The profile {path} is damaged: {error.message}", remedy) from error
    here = asdict(machine)
    for name, then in asdict(profile.machine).items():
        if then != here[name]:
            what = f"{name.replace('_', ' ')} {then!r}, here it is {here[name]!r}"
            raise FreetokenError(f"The profile {path} was measured with {what}.", remedy)
    if profile.uuid and profile.uuid != uuid:
        raise FreetokenError(
            f"The profile {path} was measured with device {profile.uuid!r}, here it is {uuid!r}.", remedy
        )
    return profile


def _remedy(uuid: str) -> str:
    if not uuid:
        return "Measure it: freetoken probe"
    return f"Measure it: freetoken probe --device {'sim' if uuid.startswith('SIM-') else 'cuda'}"
