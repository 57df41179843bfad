"""Dense weights in the memory of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import UnsupportedError
from engine.device.driver import Driver
from engine.files.codecs import align
from engine.files.ftw.opening import AGAIN, Tensor
from engine.program.ir import Program
from engine.spec.layout import ORDER

ALIGNED_BYTES = 256


@dataclass(frozen=True)
class Matrix:
    """A packed matrix; `order` is the address of the order of its columns (int32), 0 for that of its input."""

    address: int
    codec: str
    rows: int
    cols: int
    order: int


class DeviceWeights:
    """The dense tensors that a program names, in one piece.

    Raises UnsupportedError, which names the tensor, and NoRoomError.
    """

    def __init__(self, driver: Driver, program: Program, dense: Mapping[str, Tensor]) -> None:
        names = dict.fromkeys(name for op in program.ops for name in op.weights if name)
        self._dense = {name: _tensor(dense, name) for name in names}
        data = {name: np.frombuffer(tensor.data, np.uint8) for name, tensor in self._dense.items()}
        orders = {name: _order(dense, name) for name in names if name + ORDER in dense}
        data |= {name + ORDER: order.view(np.uint8) for name, order in orders.items() if order is not None}
        self._offsets, size = _places((name, array.size) for name, array in data.items())
        self._memory = driver.allocate(size)
        for name, array in data.items():
            driver.upload(self._memory.address + self._offsets[name], array)

    def matrix(self, name: str) -> Matrix:
        """A matrix by its name."""
        tensor = self._dense[name]
        if tensor.vector:
            raise UnsupportedError(f"The weight {name} is a vector where a matrix belongs.", AGAIN)
        ordered = name + ORDER in self._offsets
        order = self._address(name + ORDER) if ordered else 0
        return Matrix(self._address(name), tensor.codec, tensor.rows, tensor.cols, order)

    def vector(self, name: str, length: int) -> int:
        """The address of `length` f32 values; of an absent vector ("") 0."""
        if not name:
            return 0
        tensor = self._dense[name]
        if not tensor.vector or tensor.cols != length:
            raise UnsupportedError(f"The weight {name} is no vector of {length} values.", AGAIN)
        return self._address(name)

    def length(self, name: str) -> int:
        """Values of a vector."""
        return self._dense[name].cols

    def values(self, name: str) -> NDArray[np.float32]:
        """The values of a vector, in the host's memory."""
        tensor = self._dense[name]
        return np.frombuffer(tensor.data, np.float32, tensor.cols)

    def free(self) -> None:
        """Give the memory back."""
        self._memory.free()

    def _address(self, name: str) -> int:
        return self._memory.address + self._offsets[name]


def _tensor(dense: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in dense:
        raise UnsupportedError(f"The model has no weight {name}.", AGAIN)
    return dense[name]


def _order(dense: Mapping[str, Tensor], name: str) -> NDArray[np.int32] | None:
    """Column i of the matrix belongs to column order[i] of its input; None where that is i."""
    tensor = dense[name + ORDER]
    order = np.frombuffer(tensor.data, np.float32, tensor.cols).astype(np.int32)
    own = np.arange(dense[name].cols, dtype=np.int32)
    if not np.array_equal(np.sort(order), own):
        raise UnsupportedError(f"The weight {name}{ORDER} does not name every column once.", AGAIN)
    return None if np.array_equal(order, own) else order


def _places(sizes: Iterable[tuple[str, int]]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, size in sizes:
        offsets[name] = end
        end += align(size, ALIGNED_BYTES)
    return offsets, end
