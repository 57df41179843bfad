"""What a device executor asks of its attention, which also keeps the context memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Stream
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.device.step_data import Extent
from engine.program.executor import Batch, Bytes
from engine.program.ir import Op


class DeviceAttention(Protocol):
    """Attention operations of a program, and their keys and values in pages."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def room(self) -> ContextRoom:
        """These and the next four as in `engine.program.executor.Executor`."""

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]: ...
    def resize_context(self, room: ContextRoom) -> None: ...
    def copy_block(self, kind: BlockKind, source: int, target: int) -> None: ...
    def read_block(self, kind: BlockKind, block: int) -> Bytes: ...
    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None: ...

    def step_bytes(self, tokens: int) -> int:
        """Bytes that it wants in the block of data of a step of up to `tokens` tokens."""

    def begin(self, batch: Batch, data: NDArray[np.uint8]) -> None:
        """Before a step: `data` is its part of the block, not yet on the device. The batch has been checked."""

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        """The launches of operation `index` of the program; issued once for many steps where they are captured."""

    def free(self) -> None:
        """Give all memory back."""
