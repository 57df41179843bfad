"""What machine this is: its processor, and the memory that is really free. Read from Linux's own files.

The page cache never counts as used memory, and the limits of control groups count as the machine's own: a container
with 4 GB is a machine with 4 GB. Cores and their quota are the native module's to count, which starts the threads.
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ISA_FLAGS = {
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f", "avx512bw": "avx512bw",
    "avx512vbmi": "avx512_vbmi", "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "avx_vnni": "avx_vnni",
    "asimd": "neon", "asimddp": "neon_dotprod",
}  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """This machine as the program may use it. Memory in bytes; `memlock` -1 means unlimited.

    `memory_available` can be taken without swapping, page cache given back.
    """

    cpu: str
    isa: tuple[str, ...]
    memory_total: int
    memory_available: int
    memlock: int


def read_hardware(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Hardware:
    """Look at the machine whose pseudo file systems are at `proc` and `sys`."""
    name, flags = _cpu_model(proc)
    total, available = read_memory(proc, sys)
    return Hardware(
        cpu=name,
        isa=tuple(label for flag, label in _ISA_FLAGS.items() if flag in flags),
        memory_total=total,
        memory_available=available,
        memlock=_memlock(),
    )


def read_memory(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> tuple[int, int]:
    """Total and available bytes, the tighter of the machine and every control group around this process."""
    info = _meminfo(proc)
    total = info.get("MemTotal", 0)
    # Kernels before 3.14 have no MemAvailable; free and cached together come near.
    available = info.get("MemAvailable", info.get("MemFree", 0) + info.get("Cached", 0))
    for limit, used in _memory_groups(proc, sys):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def _meminfo(proc: Path) -> dict[str, int]:
    values = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return values


def _memory_groups(proc: Path, sys: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without reclaimable page cache) in bytes of every limited group from ours up to the root."""
    for folder in _group_folders(proc, sys):
        v2 = (folder / "memory.max").exists()
        # Past memory.high the kernel slows a group down until it is useless, so it limits as memory.max does.
        limits = ("memory.max", "memory.high") if v2 else ("memory.limit_in_bytes",)
        known = [limit for limit in (_read_number(folder / name) for name in limits) if limit is not None]
        used = _read_number(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
        if not known or used is None:
            continue
        stat = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
        prefix = "" if v2 else "total_"
        cache = sum(int(stat.get(f"{prefix}{kind}_file", "0")) for kind in ("inactive", "active"))
        yield min(known), max(0, used - cache)


def _group_folders(proc: Path, sys: Path) -> Iterator[Path]:
    """Folders of this process's memory group and its parents, in version 2 (one tree) or 1 (a tree a controller)."""
    for line in _read(proc / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            root = sys / "fs/cgroup"
        elif "memory" in controllers.split(","):
            root = sys / "fs/cgroup/memory"
        else:
            continue
        folder = root / group.lstrip("/")
        # In a container the named group may not be visible; its root then holds the limits.
        while folder != root:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield root


def _cpu_model(proc: Path) -> tuple[str, frozenset[str]]:
    """The processor's name and its feature flags."""
    name, flags = "", frozenset[str]()
    for line in _read(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model") and not name:
            name = value.strip()
        if key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return name or platform.processor() or platform.machine(), flags


def _memlock() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _read(path: Path) -> str:
    """The file's text; "" where this kernel does not have it or does not let us read it."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None
