"""What a device executor asks of its attention, which also keeps the context memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Stream
from engine.program.device.step_data import Extent
from engine.program.executor import Batch
from engine.program.ir import Op


class DeviceAttention(Protocol):
    """Attention operations of a program, and their keys and values in pages."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def kv_pages(self) -> int: ...
    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers together."""

    def resize(self, pages: int) -> None:
        """Pages below both counts keep their contents. NoRoomError, and nothing is changed, where there is no room."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page in every layer. IndexError for a page that is not there."""

    def step_bytes(self, tokens: int) -> int:
        """Bytes that it wants in the block of data of a step of up to `tokens` tokens."""

    def begin(self, batch: Batch, data: NDArray[np.uint8]) -> None:
        """Before a step: `data` is its part of the block, not yet on the device. The batch has been checked."""

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        """The launches of operation `index` of the program; issued once for many steps where they are captured."""

    def free(self) -> None:
        """Give all memory back."""
