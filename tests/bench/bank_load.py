"""How fast a pool of experts gets into host memory, beside a plain direct read of the same files.

    python -m tests.bench.bank_load [FOLDER] [--size 1G] [--rounds 9] [--place build]

Without FOLDER, an FTW folder of random records is made in `--place` and removed in the end. The loads are those of a
machine with a device (here the simulated one): reading, checking that the model is still the same, pinning. The plain
read goes past the page cache too, with as many requests under way, into a few buffers that are used again and again: it
finds no memory to be made, so it is what the disk gives. Both take turns, medians are compared. Before each, as much
memory is touched and given back: under a hypervisor memory that nobody has touched yet is slower than any disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from engine import _native
from engine.base.hardware import read_memory
from engine.base.units import MIB, format_size, parse_size
from engine.device.sim import SimDriver
from engine.experts.bank import HostBank
from engine.files.ftw.manifest import (
    DENSE_NAME,
    MANIFEST_NAME,
    BankInfo,
    Field,
    Manifest,
    Shape,
    Shard,
    record_size,
    write_manifest,
)
from engine.files.ftw.opening import Ftw, open_model

THREADS, CHUNK = 8, 4 * MIB
EXPERTS, HIDDEN, WIDTH = 64, 1024, 512
TARGET = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="an FTW folder; one is made where none is given")
    parser.add_argument("--size", type=parse_size, default=1 << 30, help="bytes of the one that is made")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--place", type=Path, default=Path("build"), help="where it is made")
    args = parser.parse_args()
    if args.folder is not None:
        compare(open_model(args.folder), args.rounds)
        return
    with random_model(args.place, args.size) as folder:
        compare(open_model(folder), args.rounds)


def compare(ftw: Ftw, rounds: int) -> None:
    """Print the rates of both, and how they compare."""
    files = [ftw.folder / shard.file for bank in ftw.manifest.banks for shard in bank.shards]
    size = sum(file.stat().st_size for file in files)
    ways: dict[str, Callable[[], float]] = {
        "plain direct read": lambda: read_plainly(files),
        "load of the bank": lambda: load(ftw),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds):
        for name in sorted(ways, reverse=bool(round_ % 2)):  # neither is always the first
            _native.host_memory(size)[:: 4 << 10] = 1
            seconds[name].append(ways[name]())
    print(f"{format_size(size)} in {len(files)} files, {rounds} rounds")
    for name, times in seconds.items():
        rates = sorted(size / taken / 1e9 for taken in times)
        print(f"{name:>20}: {statistics.median(rates):5.2f} GB/s  ({rates[0]:.2f} to {rates[-1]:.2f})")
    plain, ours = (statistics.median(times) for times in seconds.values())
    print(f"{'ratio':>20}: {plain / ours:5.2f}  (target {TARGET})")


def load(ftw: Ftw) -> float:
    """Seconds to load all banks and pin them."""
    driver = SimDriver(memory=16 * MIB)
    began = time.monotonic()
    bank = HostBank.load(ftw, driver, read_memory()[1])
    taken = time.monotonic() - began
    assert not bank.notes, bank.notes
    bank.close()
    return taken


def read_plainly(files: list[Path]) -> float:
    """Seconds to read whole files past the page cache and forget what they hold. Sizes are multiples of 4096."""
    descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
    sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
    parts = [
        (descriptor, start, min(CHUNK, size - start))
        for descriptor, size in zip(descriptors, sizes, strict=True)
        for start in range(0, size, CHUNK)
    ]
    buffers = _native.host_memory(THREADS * CHUNK)
    buffers[:] = 0  # a disk fills huge pages in fewer requests, so the plain read has them too, and from the start
    remaining = iter(parts)
    lock = threading.Lock()

    def work(number: int) -> None:
        buffer = buffers[number * CHUNK : (number + 1) * CHUNK].data
        while True:
            with lock:
                part = next(remaining, None)
            if part is None:
                return
            descriptor, start, wanted = part
            got = os.preadv(descriptor, [buffer[:wanted]], start)
            assert got == wanted, f"{got} bytes of {wanted} at {start}"

    began = time.monotonic()
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def random_model(place: Path, size: int) -> Iterator[Path]:
    """An FTW folder with `size` bytes of experts, rounded up to whole layers, in two shards."""
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bank-load-", dir=place))
    try:
        write_model(folder, size)
        yield folder
    finally:
        shutil.rmtree(folder)


def write_model(folder: Path, size: int) -> None:
    gate_up = Field("gate_up", Shape("q4_0", WIDTH, HIDDEN), 0)
    fields = (gate_up, Field("down", Shape("q4_0", HIDDEN, WIDTH), gate_up.stored_bytes))
    record = record_size(fields)
    layers = -(-size // (record * EXPERTS))
    half = -(-layers * EXPERTS // 2)
    rng = np.random.default_rng(0)
    shards = []
    for number, count in enumerate((half, layers * EXPERTS - half)):
        name, hashes = f"experts-0-{number}.bank", []
        with (folder / name).open("wb") as file:
            for _ in range(count):
                data = rng.bytes(record)
                hashes.append(xxhash.xxh3_128_hexdigest(data))
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        shards.append(Shard(name, count * record, tuple(hashes)))
    bank = BankInfo(fields, record, EXPERTS, tuple(range(layers)), tuple(shards))
    dense = b"{}".ljust(4088)
    (folder / DENSE_NAME).write_bytes(len(dense).to_bytes(8, "little") + dense)
    manifest = Manifest({}, {}, 8 + len(dense), (bank,), {}, {"tool": "bank_load"})
    (folder / MANIFEST_NAME).write_bytes(write_manifest(manifest))


if __name__ == "__main__":
    main()
