"""A worker over a real model that takes its time: `python paced_worker.py CONFIG`, started by a front under test.

Steps rest for `STEP` seconds and blocks are read and written in `BLOCK`, so one can leave in the middle of anything.
"""

from __future__ import annotations

import sys
import time
from unittest.mock import patch

from engine.memory.blocks import BlockKind
from engine.program.executor import Batch, Bytes, Floats
from engine.program.native import NativeExecutor
from engine.worker.loading import load_model
from engine.worker.main import main

STEP = 0.03
BLOCK = 0.01


class PacedExecutor(NativeExecutor):
    """The native executor, with rests."""

    def step(self, batch: Batch) -> Floats:
        time.sleep(STEP)
        return super().step(batch)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        time.sleep(BLOCK)
        return super().read_block(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        time.sleep(BLOCK)
        super().write_block(kind, block, data)


if __name__ == "__main__":
    with patch("engine.worker.loading.NativeExecutor", PacedExecutor):
        code = main(sys.argv[1:], load_model)
    sys.exit(code)
