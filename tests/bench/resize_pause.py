"""How long a live worker pauses for a resize, beside a memcpy of as many bytes as change hands.

    python -m tests.bench.resize_pause [--records 96] [--rounds 5] [--experts 1024x512]

A worker on the simulated device answers requests; between steps memory moves from experts to context and back. Before
experts shrink a prompt has filled their slots, so that those that stay have to be moved together. What a resize reports
as its seconds is the pause: no step is taken meanwhile. The bytes that change hands are those by which slots or context
memory change, whichever is more; the goal is 1.5 times their memcpy plus 20 ms. Tokens are compared with an undisturbed
run in the end. Medians over rounds that take turns with the memcpy.

Routing of random weights goes to few experts, so a second table has caches alone, of small records and of large: all
slots hold records, those used last lie anywhere, and every slot's bytes are looked at afterwards.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from engine.base.units import GIB, KvBudget, format_size
from engine.device.sim import SimDriver
from engine.experts.arena import SlotArena
from engine.experts.cache import ExpertCache
from engine.experts.split import Split
from engine.measure.random_model import RandomShape, write_random_model
from engine.worker.device_loading import load_with
from engine.worker.engine import Engine
from engine.worker.loading import load_model
from engine.worker.protocol import Done, Generate, Message, Resize, Resized, Sampling, Tokens, WorkerConfig

SLACK_SECONDS = 0.020
FACTOR = 1.5
PROMPT = tuple(range(7, 40))
KV = KvBudget(tokens=1024)
VOCABULARY = 256
CACHE_EXPERTS = 256  # of a layer, in caches alone
CACHES = ((4 << 10, 10240), (4 << 10, 40960), (64 << 10, 10240), (1 << 20, 1024))  # bytes of a record, slots
FILLING = 48  # tokens of such a prompt


@dataclass(frozen=True)
class Move:
    """A resize from what is there: its label, and what is asked for."""

    label: str
    experts: str | None = None
    kv: KvBudget | None = None


MOVES = (
    Move("experts 100% to 25%", experts="25%"),
    Move("experts 25% to 100%", experts="100%"),
    Move("experts to context", experts="25%", kv=KvBudget(tokens=32768)),
    Move("context to experts", experts="100%", kv=KV),
)


class Worker:
    """An engine and what it has said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: list[int] = []
        self.done: set[int] = set()

    def begin(self, tokens: int) -> None:
        """Send the request whose answer is compared."""
        self._hear(self.engine.handle(Generate(1, PROMPT, tokens, (), Sampling(temperature=0))))

    def step(self) -> None:
        self._hear(self.engine.step())

    def fill_slots(self, number: int) -> None:
        """Read a prompt that goes to all experts, between steps of the request whose answer is compared."""
        prompt = tuple(np.random.default_rng(number).integers(VOCABULARY, size=FILLING).tolist())
        self.engine.handle(Generate(number, prompt, 1, (), Sampling(temperature=0)))
        while number not in self.done:
            self.step()

    def resize(self, move: Move) -> Resized:
        """Carry out a move; the measurement ends with a sentence if it is refused."""
        (answer,) = self.engine.handle(Resize(1, move.kv, move.experts))
        if not isinstance(answer, Resized):
            raise SystemExit(f"{move.label}: {answer}")
        return answer

    def _hear(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Done):
                self.done.add(message.request)
            elif isinstance(message, Tokens) and message.request == 1:
                self.tokens += message.ids


def changed_bytes(resized: Resized, kv_bytes_per_token: int) -> int:
    """Bytes by which slots or context memory changed, whichever is more."""
    assert resized.cache_before is not None
    assert resized.cache_after is not None
    experts = abs(resized.cache_after.bytes - resized.cache_before.bytes)
    return max(experts, abs(resized.kv_after - resized.kv_before) * kv_bytes_per_token)


def memcpy_seconds(size: int, source: np.ndarray, target: np.ndarray) -> float:
    """Seconds to copy `size` bytes of one buffer to another, both touched before."""
    began = time.perf_counter()
    np.copyto(target[:size], source[:size])
    return time.perf_counter() - began


def full_cache(driver: SimDriver, record_bytes: int, slots: int, seed: int) -> tuple[ExpertCache, SlotArena]:
    """All slots hold records, of which each says its number in its first bytes; stamps are in random order."""
    arena = SlotArena(driver, record_bytes, slots)
    geometry = {"layers": slots // CACHE_EXPERTS, "experts": CACHE_EXPERTS, "record_bytes": record_bytes}
    room = {"fillable": slots, "capacity": slots, "slots": slots, "top_k": 8, "max_tokens": 1}
    cache = ExpertCache(driver, arena, **geometry, **room, split=Split.all_fill())
    chance = np.random.default_rng(seed)
    owner = chance.permutation(slots).astype(np.int32)
    stamps = (1 + chance.permutation(slots)).astype(np.uint32)
    for slot, record in enumerate(owner.tolist()):
        driver.upload(arena.address + slot * record_bytes, numbered(record_bytes, record))
    where = np.argsort(owner)
    for name, values in (("owner", owner), ("slot_of", where), ("slot_used", stamps), ("expert_used", stamps[where])):
        cache.tables.write(name, values)
    cache.tables.write_state(clock=slots + 1)
    return cache, arena


def numbered(record_bytes: int, record: int) -> np.ndarray:
    """The bytes of a record: its number over and over."""
    return np.full(record_bytes // 4, record, np.uint32).view(np.uint8)


def measure_caches(rounds: int, source: np.ndarray, target: np.ndarray) -> bool:
    """Print a table of caches that get smaller; whether a pause is too long."""
    failed = False
    print(f"{'RECORDS OF':<12}{'SLOTS':<16}{'MOVED':>8}{'BYTES':>10}{'PAUSE ms':>20}{'MEMCPY ms':>12}{'LIMIT ms':>10}")
    for record_bytes, slots in CACHES:
        for kept in (slots // 4, slots // 2):
            pauses, copies, moved = [], [], 0
            for number in range(rounds):
                driver = SimDriver(memory=2 * GIB)
                cache, arena = full_cache(driver, record_bytes, slots, number)
                began = time.perf_counter()
                moved = cache.resize(kept)
                pauses.append(time.perf_counter() - began)
                copies.append(memcpy_seconds((slots - kept) * record_bytes, source, target))
                cache.check(partial(numbered, record_bytes))
                cache.free()
                arena.close()
            pause, copy = statistics.median(pauses), statistics.median(copies)
            limit = FACTOR * copy + SLACK_SECONDS
            failed |= pause > limit
            what = f"{format_size(record_bytes):<12}{f'{slots} to {kept}':<16}{moved:>8}"
            span = f"{1e3 * pause:.1f} ({1e3 * min(pauses):.1f}-{1e3 * max(pauses):.1f})"
            verdict = "" if pause <= limit else "  TOO LONG"
            size = format_size((slots - kept) * record_bytes)
            print(f"{what}{size:>10}{span:>20}{1e3 * copy:>12.1f}{1e3 * limit:>10.1f}{verdict}")
    return failed


def main() -> int:
    """The command line; 1 if a pause is too long or a token differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=96, help="experts of a layer, four a token")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--experts", default="1024x512", help="hidden size x width of an expert")
    args = parser.parse_args()
    hidden, width = map(int, args.experts.split("x"))
    shape = RandomShape(2, args.records, 4, hidden_size=hidden, intermediate_size=width, heads=8, head_dim=128)
    with tempfile.TemporaryDirectory(prefix="freetoken-resize-") as folder:
        model = Path(folder) / "model"
        write_random_model(shape, model)
        return measure(model, args.rounds)


def measure(model: Path, rounds: int) -> int:
    """Print a table; 1 if a pause is too long or a token differs."""
    loaded = load_with(SimDriver(memory=2 * GIB), WorkerConfig(str(model), device="sim", kv=KV, experts="100%"))
    kv_bytes = loaded.budget.context.bytes_per_token
    worker = Worker(Engine(loaded))
    steps = 4 * rounds * len(MOVES)
    worker.begin(steps)
    worker.step()
    source, target = np.ones(1 * GIB, np.uint8), np.ones(1 * GIB, np.uint8)
    pauses: dict[str, list[float]] = {move.label: [] for move in MOVES}
    copies: dict[str, list[float]] = {move.label: [] for move in MOVES}
    sizes: dict[str, int] = {}
    for number in range(rounds):
        for place, move in enumerate(MOVES):
            if move.experts == "25%":
                worker.fill_slots(2 + number * len(MOVES) + place)
            resized = worker.resize(move)
            sizes[move.label] = size = changed_bytes(resized, kv_bytes)
            pauses[move.label].append(resized.seconds)
            copies[move.label].append(memcpy_seconds(size, source, target))
            worker.step()
    failed = 0
    print(f"{'MOVE':<24}{'BYTES':>10}{'PAUSE ms':>20}{'MEMCPY ms':>12}{'LIMIT ms':>10}")
    for label, seconds in pauses.items():
        pause, copy = statistics.median(seconds), statistics.median(copies[label])
        limit = FACTOR * copy + SLACK_SECONDS
        failed |= pause > limit
        span = f"{1e3 * pause:.1f} ({1e3 * min(seconds):.1f}-{1e3 * max(seconds):.1f})"
        verdict = "" if pause <= limit else "  TOO LONG"
        print(f"{label:<24}{format_size(sizes[label]):>10}{span:>20}{1e3 * copy:>12.1f}{1e3 * limit:>10.1f}{verdict}")
    failed |= measure_caches(rounds, source, target)
    plain = Worker(Engine(load_model(WorkerConfig(str(model), kv=KvBudget(tokens=1024)))))
    plain.begin(steps)
    while plain.engine.busy:
        plain.step()
    while worker.engine.busy:
        worker.step()
    same = worker.tokens == plain.tokens
    verdict = "the same" if same else "NOT THE SAME"
    print(f"{len(worker.tokens)} tokens through {rounds * len(MOVES)} resizes: {verdict} as without any")
    return int(failed or not same)


if __name__ == "__main__":
    sys.exit(main())
