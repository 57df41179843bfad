"""The part of the check for machines with a GPU that runs a random model with every size of cache."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.files.ftw.opening import Ftw, open_model
from engine.measure.random_model import write_random_model
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.spec.schema import Spec
from tests.unit.device_products import bits

if TYPE_CHECKING:
    from tests.gpu.gpu_check import Check


@dataclass(frozen=True)
class Talk:
    """The same tokens for every executor: a prompt, then steps of one token."""

    prompt: Sequence[int]
    steps: int

    def logits(self, executor: Any) -> list[Any]:
        pages = np.arange(-(-(len(self.prompt) + self.steps) // 16), dtype=np.int32)
        found, position = [], 0
        for tokens in (self.prompt, *([self.prompt[n % len(self.prompt)]] for n in range(self.steps))):
            positions = np.arange(position, position + len(tokens), dtype=np.int32)
            position += len(tokens)
            ends = np.array([0, len(tokens)], np.int32)
            rows = np.array([len(tokens) - 1], np.int32)
            found.append(executor.step(Batch(np.array(tokens, np.int32), positions, ends, (pages,), rows)))
        return found

    @property
    def pages(self) -> int:
        return -(-(len(self.prompt) + self.steps) // 16)


def model_steps(check: Check) -> None:
    """A random model: bits do not depend on the cache, logits are near the CPU's; the speed of every way to split."""
    shape = check.sizes.shape
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(shape, Path(folder) / "random")
        ftw = open_model(Path(folder) / "random")
        bank = HostBank.load(ftw, check.driver, 64 << 30)
        try:
            _model_steps(check, ftw, bank)
        finally:
            bank.close()


def _model_steps(check: Check, ftw: Ftw, bank: HostBank) -> None:
    shape, program = check.sizes.shape, lower(Spec.from_json(ftw.spec))
    random = np.random.default_rng(3)
    talk = Talk(random.integers(0, shape.vocab_size, check.sizes.prompt).tolist(), check.sizes.steps)
    native = NativeExecutor(program, ftw.dense, ftw.banks, room=ContextRoom(talk.pages))
    near = talk.logits(native)
    began = time.perf_counter()
    talk.logits(native)
    cpu = time.perf_counter() - began
    pool = shape.layers * shape.experts
    first: list[Any] = []
    for label, slots, split in (
        ("no cache", 0, Split.all_cpu()),
        ("10 % slots, all fill", max(shape.top_k, pool // 10), Split.all_fill()),
        ("10 % slots, all CPU", max(shape.top_k, pool // 10), Split.all_cpu()),
        ("10 % slots, f = 0.3", max(shape.top_k, pool // 10), Split.carry(0.3)),
        ("37 % slots, all fill", max(shape.top_k, pool * 37 // 100), Split.all_fill()),
        ("37 % slots, all CPU", max(shape.top_k, pool * 37 // 100), Split.all_cpu()),
        ("37 % slots, f = 0.3", max(shape.top_k, pool * 37 // 100), Split.carry(0.3)),
        ("all in slots", pool, Split.all_fill()),
    ):
        made = check.make(program, ftw, check.driver, bank, slots=(slots,), split=split, room=ContextRoom(talk.pages))
        try:
            found = talk.logits(made)
            before = dict(made.counters())
            began = time.perf_counter()
            talk.logits(made)
            taken = time.perf_counter() - began
            counters = {name: value - before.get(name, 0) for name, value in made.counters().items()}
        finally:
            made.close()
        first = first or found
        same = all(np.array_equal(bits(a), bits(b)) for a, b in zip(found, first, strict=True))
        far = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, near, strict=True))
        counts = " ".join(f"{name} {counters[name]:.0f}" for name in ("hits", "fills", "cpu_experts"))
        check.note(f"{label}: bits as without a cache", f"{counts}; {far:.1e} from the CPU's", same and far < 1e-3)
        check.note(f"{label}: prompt and {talk.steps} steps", f"{taken:.2f} s, CPU alone {cpu:.2f} s")
