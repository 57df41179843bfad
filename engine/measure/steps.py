"""Steps of one sequence over an executor, as measurements take them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.program.executor import Batch, Executor, Floats, Ints
from engine.worker.scheduler import POLICY


class OneSequence:
    """One sequence in pages of its own, from position 0 on. Steps may be as long as a worker's."""

    def __init__(self, executor: Executor, context: int) -> None:
        """`context`: the most positions; the executor must have pages for them."""
        self._executor = executor
        self._pages = np.arange(-(-context // executor.page_tokens), dtype=np.int32)
        self.position = 0

    def start_over(self) -> None:
        """Begin another sequence in the place of this one."""
        self.position = 0

    def step(self, ids: Ints, wanted: int = 1) -> Floats:
        """Append `ids`; the logits after the last `wanted` of them."""
        count = len(ids)
        start, self.position = self.position, self.position + count
        return self._executor.step(
            Batch(
                tokens=ids,
                positions=np.arange(start, start + count, dtype=np.int32),
                seq_starts=np.array([0, count], np.int32),
                page_tables=(self._pages,),
                rows=np.arange(count - wanted, count, dtype=np.int32),
            )
        )


def chunks(ids: Ints) -> Iterator[tuple[Ints, bool]]:
    """A prompt in steps as long as a worker's, and whether each is the last."""
    most = POLICY.max_step_tokens
    for start in range(0, len(ids), most):
        yield ids[start : start + most], start + most >= len(ids)
