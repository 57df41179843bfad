"""The checks of `freetoken doctor`, as a table: each looks at one thing and says what it found and what to do."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from engine.base.config import read_config_file, resolve
from engine.base.errors import BusyError, FreetokenError
from engine.base.gpu import missing_for_cuda
from engine.base.hardware import Hardware
from engine.base.paths import Paths
from engine.base.units import GIB, format_size
from engine.files.space import free_space
from freetoken_cli.front_process import health

OK, NOTE, FAIL = "ok", "note", "fail"
_ENOUGH_DISK = 2 * GIB
_ENOUGH_MEMORY = 1 * GIB


@dataclass(frozen=True)
class Finding:
    """What a check found: `ok`, `note` (works, but) or `fail` (something will not work), and what to do about it."""

    name: str
    status: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What the checks look at."""

    paths: Paths
    hardware: Hardware


def check_python(around: Surroundings) -> Finding:
    return Finding("python", OK, f"{platform.python_version()} ({sys.executable})")


def check_native(around: Surroundings) -> Finding:
    try:
        import engine._native as native
    except ImportError as error:
        return Finding("native", FAIL, f"the native module does not load: {error}", "Build again: pip install .")
    return Finding("native", OK, f"kernels {', '.join(native.isas())}")


def check_processor(around: Surroundings) -> Finding:
    hardware = around.hardware
    features = ", ".join(hardware.isa) or "no vector extensions that the kernels know"
    return Finding("processor", OK if hardware.isa else NOTE, f"{hardware.cpu}: {features}")


def check_cores(around: Surroundings) -> Finding:
    try:
        from engine import _native
    except ImportError:
        return Finding("cores", NOTE, "not counted: the native module does not load")
    found, present = _native.topology(), os.cpu_count() or 1
    detail = f"{found['threads']} threads on {found['physical_cores']} cores ({len(found['cpus'])} CPUs)"
    if found["quota"] is not None:
        return Finding("cores", NOTE, f"{detail}; a quota of {found['quota']:g} CPUs")
    if len(found["cpus"]) < present:
        return Finding("cores", NOTE, f"{detail}; an affinity mask holds {present - len(found['cpus'])} CPUs back")
    return Finding("cores", OK, detail)


def check_memory(around: Surroundings) -> Finding:
    hardware = around.hardware
    detail = f"{format_size(hardware.memory_available)} available of {format_size(hardware.memory_total)}"
    if hardware.memory_available < _ENOUGH_MEMORY:
        return Finding("memory", NOTE, detail, "Close other programs before you load a model.")
    return Finding("memory", OK, detail)


def check_memlock(around: Surroundings) -> Finding:
    from engine.experts.pinning import pin_limit

    limit = pin_limit(around.hardware.memlock)
    if not limit.remedy:
        return Finding("memlock", OK, limit.sentence)
    detail = f"{limit.sentence}; a GPU copies experts from no other memory, and the CPU runs those beyond it"
    return Finding("memlock", NOTE, detail, limit.remedy)


def check_devices(around: Surroundings) -> Finding:
    missing = missing_for_cuda()
    if missing is None:
        return Finding("devices", OK, "cpu, cuda, and sim (a GPU simulated in memory)")
    return Finding("devices", OK, f"cpu, and sim (a GPU simulated in memory); not cuda: {missing.reason}")


def check_disk(around: Surroundings) -> Finding:
    folder, free = free_space(around.paths.store)
    detail = f"{format_size(free)} free at {folder}"
    if free < _ENOUGH_DISK:
        return Finding("disk", NOTE, detail, "Free some space, or move the store: FREETOKEN_STORE=/other/disk/models")
    return Finding("disk", OK, detail)


def check_store(around: Surroundings) -> Finding:
    store = around.paths.store
    remedy = "Check its permissions, or set FREETOKEN_STORE."
    try:
        there = store.exists()
    except PermissionError:
        return Finding("store", FAIL, f"{store} may not be looked at by this user", remedy)
    if not there:
        folder, _ = free_space(store)
        if not os.access(folder, os.W_OK | os.X_OK):
            return Finding("store", FAIL, f"{store} is not there, and {folder} may not be written to", remedy)
        return Finding("store", OK, f"{store} (made by the first pull)")
    if not store.is_dir():
        return Finding("store", FAIL, f"{store} is not a folder", "Move the file away, or set FREETOKEN_STORE.")
    if not os.access(store, os.R_OK | os.X_OK):
        return Finding("store", FAIL, f"{store} may not be read by this user", remedy)
    if not os.access(store, os.W_OK):
        return Finding("store", NOTE, f"{store} may be read and not written to: no pulls, no sessions", remedy)
    return Finding("store", OK, str(store))


def check_config(around: Surroundings) -> Finding:
    path = around.paths.config
    try:
        values = read_config_file(path)
        resolve({}, {}, values, str(path))
    except FreetokenError as error:
        return Finding("config", FAIL, error.message, error.remedy)
    return Finding("config", OK, f"{path} sets {', '.join(values)}" if values else f"no settings in {path}")


def check_server(around: Surroundings) -> Finding:
    try:
        found = health(around.paths.socket)
    except BusyError as error:
        return Finding("server", FAIL, error.message, error.remedy)
    return Finding(
        "server", OK, "not running (run starts it)" if found is None else f"running, version {found.version}"
    )


def check_torch(around: Surroundings) -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "absent"
    return Finding("torch", OK, f"{version}; only tests and the reference executor use it")


CHECKS: tuple[Callable[[Surroundings], Finding], ...] = (
    check_python,
    check_native,
    check_processor,
    check_cores,
    check_memory,
    check_memlock,
    check_devices,
    check_disk,
    check_store,
    check_config,
    check_server,
    check_torch,
)
