"""What the device path does on the GPU of this machine, as a table: `make gpu-check`.

Every part is tried by itself, so that one that fails leaves the others standing. On `--device sim` the same parts run
on the simulated device, which proves this script and says nothing of speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from engine.device import products
from engine.device.driver import Driver, Stream
from engine.device.kernels import signatures
from engine.device.sim import SimDriver
from engine.experts.arena import SlotArena
from engine.experts.cache import ExpertCache
from engine.experts.split import Split
from engine.files.codecs import CODECS
from engine.measure.random_model import RandomShape
from engine.program.device.executor import DeviceExecutor
from engine.program.device.mixers import DeviceMixers
from engine.program.device.native_mixers import NativeMixers
from tests.gpu.check_mixers import hybrid_steps, recurrence_rates, selection_steps
from tests.gpu.check_models import model_steps
from tests.unit.device_products import bits, random_input, random_matrix

MIB = 1 << 20
GB = 1e9
PROGRAM = (sys.executable, "-P", "-m", "freetoken_cli")


@dataclass(frozen=True)
class Sizes:
    """How much is measured: `FULL` on a GPU, `SMALL` where the script itself is tried."""

    copied: int
    records: int
    matrix: tuple[int, int]
    shape: RandomShape
    steps: int
    prompt: int
    slots: tuple[int, ...]
    repeats: int


FULL = Sizes(
    copied=512 * MIB,
    records=256,
    matrix=(4096, 4096),
    shape=RandomShape(24, 64, 8, hidden_size=2048, intermediate_size=768, heads=16, head_dim=128, vocab_size=32768),
    steps=48,
    prompt=512,
    slots=(256, 1_000, 4_000, 10_000, 40_000),
    repeats=20,
)
SMALL = Sizes(
    copied=2 * MIB,
    records=16,
    matrix=(64, 256),
    shape=RandomShape(3, 8, 2),
    steps=4,
    prompt=40,
    slots=(256, 1_000),
    repeats=2,
)


@dataclass
class Check:
    """The device under test and what has been found of it."""

    driver: Driver
    sizes: Sizes
    make: Callable[..., DeviceExecutor]
    make_mixers: Callable[..., DeviceMixers]
    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def note(self, what: str, found: str, good: bool = True) -> None:
        self.rows.append((what, found, good))
        print(f"{'ok  ' if good else 'FAIL'}  {what:<44} {found}", flush=True)

    def attempt(self, part: Callable[[Check], None]) -> None:
        """Run one part; what it raises is a row of the table."""
        try:
            part(self)
        except Exception as error:
            traceback.print_exc()
            self.note(part.__name__, repr(error)[:200], False)

    def seconds(self, issue: Callable[[Stream], None]) -> float:
        """Of one issue among `repeats` in a captured graph, the median of five launches."""
        stream = self.driver.stream("timed")
        with self.driver.capture(stream) as graph:
            for _ in range(self.sizes.repeats):
                issue(stream)
        taken = []
        for _ in range(6):
            began = time.perf_counter()
            graph.launch(stream)
            self.driver.synchronise(stream)
            taken.append(time.perf_counter() - began)
        return median(taken[1:]) / self.sizes.repeats


def compile_kernels(check: Check) -> None:
    """Every kernel of the table loads."""
    began = time.perf_counter()
    for name in signatures():
        check.driver.kernel(name)
    check.note("kernels compiled and loaded", f"{len(signatures())} in {time.perf_counter() - began:.1f} s")


def product_bits(check: Check) -> None:
    """Products of every codec have the bits of the CPU's, one row at a time and many."""
    driver, random = check.driver, np.random.default_rng(0)
    wrong = []
    for codec in CODECS:
        matrix = random_matrix(codec, 150, 512, random, extreme=True)
        x = random_input(11, 512, random)
        for kind in ("linear", "linear_many"):
            if not np.array_equal(bits(_product(driver, kind, matrix, x)), bits(matrix.times(x))):
                wrong.append(f"{kind}_{codec}")
    check.note("products, bits against the CPU", ", ".join(wrong) or f"{len(CODECS)} codecs equal", not wrong)


def _product(driver: Driver, kind: str, matrix: Any, x: Any) -> Any:
    stream = driver.stream()
    rows, cols, tokens = matrix.rows, matrix.cols, len(x)
    stride = products.input_bytes(matrix.codec, cols)
    is_float = CODECS[matrix.codec].is_float
    with _memory(driver) as new:
        weights, live, out = new(matrix.packed.nbytes), new(4), new(4 * tokens * rows)
        source, packed = new(x.nbytes), new(tokens * stride)
        driver.upload(weights, matrix.packed)
        driver.upload(live, np.array([tokens], np.int32))
        driver.upload(source, x)
        if is_float:
            grid = products.row_grid(cols, tokens)
            kernel, threads = driver.kernel("gather_f32"), products.ROW_THREADS
        else:
            grid = products.pack_grid(cols, tokens)
            kernel, threads = driver.kernel("pack_q16"), products.PACK_THREADS
        driver.launch(stream, kernel, grid, threads, (source, cols, 0, live, 1, cols, packed, stride))
        many = kind == "linear_many"
        grid = products.many_grid(rows, products.token_groups(tokens)) if many else products.few_grid(rows, tokens)
        threads = products.MANY_THREADS if many else products.FEW_THREADS
        args = (weights, rows, cols, packed, stride, live, 0, 1.0, out, rows)
        driver.launch(stream, driver.kernel(f"{kind}_{matrix.codec}"), grid, threads, args)
        driver.synchronise(stream)
        found = np.empty((tokens, rows), np.float32)
        driver.download(out, found)
    return found


@contextmanager
def _memory(driver: Driver) -> Iterator[Callable[[int], int]]:
    held = []

    def new(size: int) -> int:
        held.append(driver.allocate(size))
        return held[-1].address

    try:
        yield new
    finally:
        for memory in held:
            memory.free()


def product_rates(check: Check) -> None:
    """One row times a matrix, beside a copy within the device: bytes a second of each."""
    driver, size = check.driver, check.sizes.copied
    with _memory(driver) as new:
        source, target = new(size), new(size)
        copied = check.seconds(lambda stream: driver.copy(stream, target, source, size))
    peak = 2 * size / copied / GB  # each byte is read and written
    check.note("copy within the device", f"{peak:.0f} GB/s read and written")
    rows, cols = check.sizes.matrix
    for codec in ("q4_0", "q4_k", "mxfp4", "nvfp4", "q8_0", "fp8", "bf16"):
        matrix = random_matrix(codec, rows, cols, np.random.default_rng(1))
        copies = max(1, check.sizes.copied // 4 // matrix.packed.nbytes)  # more than a cache holds
        with _memory(driver) as new:
            weights, live, out = new(copies * matrix.packed.nbytes), new(4), new(4 * rows)
            stride = products.input_bytes(codec, cols)
            x = new(stride)
            driver.upload(live, np.array([1], np.int32))
            kernel, grid = driver.kernel(f"linear_{codec}"), products.few_grid(rows, 1)

            def once(stream: Stream, n: int = copies, of: Any = matrix, at: Any = (weights, x, stride, live, out),
                     run: Any = (kernel, grid)) -> None:  # fmt: skip
                for copy in range(n):
                    args = (at[0] + copy * of.packed.nbytes, rows, cols, at[1], at[2], at[3], 0, 1.0, at[4], rows)
                    driver.launch(stream, run[0], run[1], products.FEW_THREADS, args)

            taken = check.seconds(once)
        rate = copies * matrix.packed.nbytes / taken / GB
        check.note(f"one row times {rows} x {cols} in {codec}", f"{rate:.0f} GB/s, {rate / peak:.2f} of the copy")


def fill_rate(check: Check) -> None:
    """The fill kernel beside the driver's own copy, the same bytes from pinned memory."""
    driver, record = check.driver, 2 * MIB if check.sizes is FULL else 64 << 10
    count = max(1, check.sizes.copied // record // 4)
    host = np.random.default_rng(2).integers(0, 256, count * record, np.uint8)
    pinned = driver.pin(host, host.nbytes)
    with _memory(driver) as new:
        slots, fills, counts, shards = new(host.nbytes), new(8 * count), new(32), new(8)
        driver.upload(shards, np.array([pinned.address], np.uint64))
        driver.upload(fills, np.repeat(np.arange(count, dtype=np.int32), 2))
        driver.upload(counts, np.array([count, 0, count, count, 0, 0, 0, 0], np.int32))
        args = (shards, count, record, fills, counts, slots, record)
        fill = check.seconds(lambda stream: driver.launch(stream, driver.kernel("fill"), (32, 1, 1), 256, args))
        copied = np.empty_like(host)
        driver.download(slots, copied)
        copy = check.seconds(lambda stream: driver.copy(stream, slots, pinned.address, host.nbytes))
    pinned.free()
    check.note("filled slots hold their records", "every byte", bool(np.array_equal(copied, host)))
    rates = host.nbytes / fill / GB, host.nbytes / copy / GB
    check.note("fill kernel / driver's copy", f"{rates[0]:.1f} / {rates[1]:.1f} GB/s = {rates[0] / rates[1]:.2f}")


def plan_cost(check: Check) -> None:
    """Microseconds of a plan by the number of slots and of fills."""
    driver = check.driver
    for slots in check.sizes.slots:
        layers, experts, top_k = -(-slots // 128) + 1, 256, 8
        room = SlotArena(driver, 4096, slots)
        found = []
        for split in (Split.all_cpu(), Split.all_fill()):
            cache = ExpertCache(
                driver, room, layers=layers, experts=experts, record_bytes=4096, fillable=layers * experts,
                capacity=slots, slots=slots, split=split, top_k=top_k, max_tokens=1,
            )  # fmt: skip
            with _memory(driver) as new:
                ids, live = new(4 * top_k), new(4)
                driver.upload(ids, np.arange(top_k, dtype=np.int32))
                driver.upload(live, np.array([1], np.int32))

                def plans(stream: Stream, of: Any = cache, ids: int = ids, live: int = live, n: int = layers) -> None:
                    for place in range(min(n, 8)):
                        of.launch_plan(stream, place, ids, live, 1)

                found.append(check.seconds(plans) / min(layers, 8) * 1e6)
            cache.check()
            cache.free()
        room.close()
        check.note(f"plan, {slots} slots", f"{found[0]:.1f} us without fills, {found[1]:.1f} us with them")


def end_to_end(check: Check) -> None:
    """The program answers alike on the CPU and on the device."""
    texts = []
    for device in ("cpu", check.driver.name):
        subprocess.run([*PROGRAM, "pull", "demo", "--yes"], check=True, capture_output=True)
        command = [*PROGRAM, "run", "demo", "What is the capital of France?", "--greedy", "--max-tokens", "12"]
        done = subprocess.run([*command, "--device", device], check=True, capture_output=True, text=True)
        texts.append(done.stdout.strip())
        subprocess.run([*PROGRAM, "stop", "demo"], check=False, capture_output=True)
    check.note("freetoken run demo", f"cpu {texts[0]!r}, {check.driver.name} {texts[1]!r}", texts[0] == texts[1])


def probe(check: Check) -> None:
    """`freetoken probe` measures link and experts."""
    command = [*PROGRAM, "probe", "--device", check.driver.name, "--seconds", "10"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(done.stdout)
    check.note("freetoken probe", "as above")


PARTS = (
    compile_kernels, product_bits, product_rates, fill_rate, plan_cost, hybrid_steps, selection_steps, recurrence_rates,
    model_steps, probe, end_to_end,
)  # fmt: skip


def open_check(device: str, sizes: Sizes) -> Check:
    """The device of that name."""
    if device == "sim":
        return Check(SimDriver(1 << 30, threads=2), sizes, DeviceExecutor, NativeMixers)
    from engine.worker.cuda_device import cuda_executor, cuda_mixers, open_cuda

    driver = open_cuda()
    return Check(driver, sizes, cuda_executor(driver), cuda_mixers(driver))


def main(arguments: Sequence[str] | None = None) -> int:
    """The table; 1 if a row of it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], action="append")
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    args = parser.parse_args(arguments)
    check = open_check(args.device, FULL if args.device == "cuda" else SMALL)
    print(f"{check.driver.description}, {datetime.now(UTC):%Y-%m-%d}\n")
    for part in PARTS:
        if not args.only or part.__name__ in args.only:
            check.attempt(part)
    failed = [row for row in check.rows if not row[2]]
    print(f"\n{len(check.rows) - len(failed)} of {len(check.rows)} rows are good.")
    if args.json:
        names = ("what", "found", "good")
        args.json.write_text(json.dumps([dict(zip(names, row, strict=True)) for row in check.rows], indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
