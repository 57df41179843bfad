"""An executor without a model: its logits are a hash of the tokens that its cache says came before.

It reads every earlier token of a sequence back through the page table, so a wrong page, a page shared by mistake or a
lost copy gives other tokens than `answer` does, which knows nothing of pages.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engine.base.errors import DoesNotFitError
from engine.base.units import KvBudget
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.budget import ContextNeeds, ContextPlan, plan_context
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch, Bytes, Floats
from engine.worker.budget import Budget, HostPlanner
from engine.worker.loaded import LoadedModel

VOCAB = 300
POISON = 7  # a sequence that holds this token has NaN logits
CRASH = 8  # a batch that holds this token raises


def logits_after(prefix: Sequence[int], vocab: int = VOCAB) -> Floats:
    """The logits [vocab] that follow `prefix`."""
    if POISON in prefix:
        return np.full(vocab, np.nan, np.float32)
    digest = hashlib.blake2b(np.array(prefix, np.int32).tobytes(), digest_size=8).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    logits = generator.standard_normal(vocab).astype(np.float32) * 3
    logits[[POISON, CRASH]] = -50
    return logits


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy continuation of `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_after(tokens).argmax()))
    return tokens[len(prompt) :]


class FakeExecutor:
    """Fulfils `engine.program.executor.Executor`. A step sleeps for `pace` seconds a token."""

    def __init__(self, room: ContextRoom, *, pace: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self.cache = np.full((room.pages, PAGE_TOKENS), -1, np.int64)
        self.most_pages = 1 << 20
        self.pace = pace
        self.sleep = sleep
        self.batches: list[Batch] = []
        self.copies = 0

    @property
    def page_tokens(self) -> int:
        return PAGE_TOKENS

    @property
    def room(self) -> ContextRoom:
        return ContextRoom(len(self.cache))

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return {"page": self.cache[:1].nbytes, "window": 0, "state": 0}

    def resize_context(self, room: ContextRoom) -> None:
        pages = room.pages
        if pages > self.most_pages:
            raise DoesNotFitError(f"{pages} pages are {pages - self.most_pages} too many.", "Give a smaller --kv.")
        kept = self.cache[:pages]
        self.cache = np.full((pages, PAGE_TOKENS), -1, np.int64)
        self.cache[: len(kept)] = kept

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        assert kind == "page"
        self.copies += 1
        self.cache[target] = self.cache[source]

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        assert kind == "page"
        return self.cache[block].copy().view(np.uint8)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        assert kind == "page"
        self.cache[block] = data.view(np.int64)

    def step(self, batch: Batch) -> Floats:
        self.batches.append(batch)
        if CRASH in batch.tokens:
            raise RuntimeError("crash token")
        if self.pace:
            self.sleep(self.pace * len(batch.tokens))
        after: dict[int, Floats] = {}
        for index, table in enumerate(batch.page_tables):
            start, end = batch.seq_starts[index], batch.seq_starts[index + 1]
            positions = batch.positions[start:end]
            assert len(positions)
            assert (np.diff(positions) == 1).all()
            self.cache[table[positions // PAGE_TOKENS], positions % PAGE_TOKENS] = batch.tokens[start:end]
            for row in batch.rows:
                if start <= row < end:
                    earlier = np.arange(batch.positions[row] + 1)
                    prefix = self.cache[table[earlier // PAGE_TOKENS], earlier % PAGE_TOKENS]
                    after[int(row)] = logits_after(prefix)
        return np.array([after[int(row)] for row in batch.rows], np.float32).reshape(len(batch.rows), VOCAB)

    def trace(self, batch: Batch) -> list[Floats]:
        raise NotImplementedError("a fake has no layers")

    def counters(self) -> Mapping[str, float]:
        return {"steps": float(len(self.batches)), "expert_bytes": 300.0 * len(self.batches)}


def fake_model(
    kv_tokens: int = 1024, context: int | None = None, *, model_context: int = 4096, pace: float = 0.0
) -> LoadedModel:
    """A loaded fake. `kv_tokens` and `context` as the flags would ask for them."""
    plan: ContextPlan = plan_context(
        ContextNeeds(100),
        model_context=model_context,
        available=1 << 30,
        context=context,
        kv=KvBudget(tokens=kv_tokens),
    )
    return LoadedModel(
        executor=FakeExecutor(plan.room, pace=pace),
        vocab_size=VOCAB,
        context_limit=context or model_context,
        budget=Budget(plan),
        planner=HostPlanner(context or model_context, None, available=lambda: 1 << 30),
        device="cpu",
        isa="fake",
        threads=1,
        model_bytes=12345,
        load_seconds=0.0,
        dense_step_bytes=1000,
    )
