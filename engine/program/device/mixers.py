"""What a device executor asks of everything that keeps context memory: attention and recurrences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Stream
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.step_data import Extent
from engine.program.executor import Batch, Bytes
from engine.program.ir import Op, Program

MIXERS = frozenset(("attention", "choose", "compress", "compressed_attention", "conv", "delta_rule", "ssm"))
"""Kinds of operations that mix the tokens of a sequence."""


class DeviceMixers(Protocol):
    """The operations of a program that mix tokens, and the blocks in which they keep what they need of them."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def room(self) -> ContextRoom: ...
    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        """Bytes of a block in all layers together; 0 for a kind that the program does not use."""

    def resize_context(self, room: ContextRoom) -> None:
        """Blocks below both counts keep their contents. NoRoomError, and nothing is changed, where there is no room."""

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        """Copy a block in every layer. IndexError for one that is not there."""

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        """What a block holds. IndexError for one that is not there."""

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        """Fill a block. IndexError for one that is not there, ValueError for data of another size."""

    def step_bytes(self, tokens: int) -> int:
        """Bytes that it wants in the block of data of a step of up to `tokens` tokens."""

    def begin(self, batch: Batch, tokens: int, data: NDArray[np.uint8]) -> None:
        """Before a step whose launches are issued for `tokens` tokens.

        `data` is its part of the block, not yet on the device. The batch has been checked.
        """

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        """The launches of operation `index` of the program; issued once for many steps where they are captured."""

    def free(self) -> None:
        """Give all memory back."""


class MakeMixers(Protocol):
    """A class of mixers, such as `NativeMixers`."""

    def __call__(
        self,
        driver: Driver,
        program: Program,
        dense: Mapping[str, Tensor],
        buffers: DeviceBuffers,
        *,
        kv_dtype: str,
        page_tokens: int,
        room: ContextRoom,
        max_tokens: int,
        threads: int | None,
        isa: str,
    ) -> DeviceMixers: ...
