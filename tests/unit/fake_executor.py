"""An executor without a model: its logits are a hash of the tokens that its cache says came before.

It reads every earlier token of a sequence back through the page table, so a wrong page, a page shared by mistake or a
lost copy gives other tokens than `answer` does, which knows nothing of pages.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import DoesNotFitError
from engine.base.units import KvBudget
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.budget import ContextNeeds, ContextPlan, plan_context
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch, Bytes, Floats
from engine.worker.budget import Budget, HostPlanner
from engine.worker.loaded import LoadedModel

VOCAB = 300
ATTENTION = ContextNeeds(100)
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


def chain(tokens: Sequence[int], state: int = 0) -> int:
    """A recurrent state: a running hash of tokens."""
    for token in tokens:
        state = (state * 1_000_003 + int(token) + 1) % ((1 << 61) - 1)
    return state


class FakeExecutor:
    """Fulfils `engine.program.executor.Executor`. A step sleeps for `pace` seconds a token.

    With a `reach` window pages must hold what they should, with states so must the state that a step begins from: else
    the answer is another one.
    """

    crash = CRASH

    def __init__(
        self,
        room: ContextRoom,
        *,
        reach: int = 0,
        pace: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.reach = reach
        self.stateful = room.states > 0
        self.blocks: dict[BlockKind, NDArray[np.int64]] = {
            kind: np.full((room.count(kind), 1 if kind == "state" else PAGE_TOKENS), -1, np.int64)
            for kind in ("page", "window", "state")
        }
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
        return ContextRoom(*(len(self.blocks[kind]) for kind in ("page", "window", "state")))

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        used = {"page": True, "window": self.reach > 0, "state": self.stateful}
        return {kind: self.blocks[kind][:1].nbytes if used[kind] else 0 for kind in self.blocks}

    def resize_context(self, room: ContextRoom) -> None:
        if room.pages > self.most_pages:
            raise DoesNotFitError(
                f"{room.pages} pages are {room.pages - self.most_pages} too many.", "Give a smaller --kv."
            )
        for kind, old in self.blocks.items():
            new = np.full((room.count(kind), old.shape[1]), -1, np.int64)
            kept = min(len(old), len(new))
            new[:kept] = old[:kept]
            self.blocks[kind] = new

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self.copies += 1
        self.blocks[kind][target] = self.blocks[kind][source]

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self.blocks[kind][block].copy().view(np.uint8)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self.blocks[kind][block] = data.view(np.int64)

    def logits_after(self, prefix: Sequence[int]) -> Floats:
        """The logits [vocab] that follow what the cache says came before."""
        return logits_after(prefix)

    def step(self, batch: Batch) -> Floats:
        self.batches.append(batch)
        if self.crash in batch.tokens:
            raise RuntimeError("crash token")
        if self.pace:
            self.sleep(self.pace * len(batch.tokens))
        states = [self._begin(batch, index) for index in range(len(batch.page_tables))]
        after: dict[int, Floats] = {}
        for index, table in enumerate(batch.page_tables):
            start, end = batch.seq_starts[index], batch.seq_starts[index + 1]
            positions = batch.positions[start:end]
            assert len(positions)
            assert (np.diff(positions) == 1).all()
            self.blocks["page"][table[positions // PAGE_TOKENS], positions % PAGE_TOKENS] = batch.tokens[start:end]
            earlier = np.arange(positions[-1] + 1)
            prefix = self.blocks["page"][table[earlier // PAGE_TOKENS], earlier % PAGE_TOKENS]
            right = self._sees(batch, index, prefix) and self._goes_on(batch, index, prefix, states[index])
            for row in batch.rows:
                if start <= row < end:
                    known = prefix[: batch.positions[row] + 1]
                    after[int(row)] = self.logits_after(known if right else [-1, *known])
        return np.array([after[int(row)] for row in batch.rows], np.float32).reshape(len(batch.rows), VOCAB)

    def _begin(self, batch: Batch, index: int) -> int:
        if not self.stateful or batch.positions[batch.seq_starts[index]] == 0:
            return 0
        return int(self.blocks["state"][batch.states[index], 0])

    def _sees(self, batch: Batch, index: int, prefix: NDArray[np.int64]) -> bool:
        """Write the window pages; whether the step's first token sees there what it should."""
        if not self.reach:
            return True
        start, end = batch.seq_starts[index], batch.seq_starts[index + 1]
        table, positions = batch.window_tables[index], batch.positions[start:end]
        assert (table[positions // PAGE_TOKENS] >= 0).all()
        self.blocks["window"][table[positions // PAGE_TOKENS], positions % PAGE_TOKENS] = batch.tokens[start:end]
        seen = np.arange(max(0, positions[0] - self.reach + 1), positions[-1] + 1)
        there = self.blocks["window"][table[seen // PAGE_TOKENS], seen % PAGE_TOKENS]
        return bool((table[seen // PAGE_TOKENS] >= 0).all() and (there == prefix[seen]).all())

    def _goes_on(self, batch: Batch, index: int, prefix: NDArray[np.int64], state: int) -> bool:
        """Go through the step's tokens, saving on the way; whether the state they began from was right."""
        if not self.stateful:
            return True
        start, end = int(batch.seq_starts[index]), int(batch.seq_starts[index + 1])
        first = int(batch.positions[start])
        right = state == chain(prefix[:first])
        slots = dict(batch.saves.tolist())
        for token in range(start, end):
            state = chain([int(batch.tokens[token])], state)
            if token in slots:
                self.blocks["state"][slots[token], 0] = state
        self.blocks["state"][batch.states[index], 0] = state
        return right

    def trace(self, batch: Batch) -> list[Floats]:
        raise NotImplementedError("a fake has no layers")

    def counters(self) -> Mapping[str, float]:
        return {"steps": float(len(self.batches)), "expert_bytes": 300.0 * len(self.batches)}


def fake_model(
    kv_tokens: int = 1024,
    context: int | None = None,
    *,
    model_context: int = 4096,
    pace: float = 0.0,
    needs: ContextNeeds = ATTENTION,
    available: int = 1 << 30,
) -> LoadedModel:
    """A loaded fake. `kv_tokens` and `context` as the flags would ask for them."""
    plan: ContextPlan = plan_context(
        needs,
        model_context=model_context,
        available=available,
        context=context,
        kv=KvBudget(tokens=kv_tokens),
    )
    return LoadedModel(
        executor=FakeExecutor(plan.room, reach=needs.reach, pace=pace),
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
