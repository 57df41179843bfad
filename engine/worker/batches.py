"""What the next step computes, as executors read it."""

from __future__ import annotations

import numpy as np

from engine.memory.lookup import ContextTraits
from engine.program.executor import Batch
from engine.worker.scheduler import Run


def make_batch(runs: list[Run], traits: ContextTraits, more: int) -> Batch:
    """The batch of `runs`, whose leases have room for them. `more` prompt tokens are read in the step after it."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    rows: list[int] = []
    pages, windows, states = [], [], []
    saves: list[tuple[int, int]] = []
    for run in runs:
        lease = run.request.lease
        assert lease is not None
        end = run.start + run.count
        saves += [(len(tokens) + save.border - 1 - run.start, save.state) for save in lease.saves if save.state >= 0]
        tokens += run.request.tokens[run.start : end]
        positions += range(run.start, end)
        starts.append(len(tokens))
        pages.append(np.array(lease.pages, np.int32))
        windows.append(np.array(lease.windows, np.int32))
        states.append(lease.state)
        if run.completes:
            rows.append(len(tokens) - 1)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        seq_starts=np.array(starts, np.int32),
        page_tables=tuple(pages),
        rows=np.array(rows, np.int32),
        window_tables=tuple(windows) if traits.reach else (),
        states=np.array(states if traits.stateful else [], np.int32),
        saves=np.array(saves, np.int32).reshape(len(saves), 2),
        more=more,
    )
