"""The weights of an open model as plain f32 arrays, for the reference executor and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.files.codecs import CODECS
from engine.files.ftw.manifest import GATE_UP, Field
from engine.files.ftw.opening import Bank, Ftw
from engine.spec.layout import ORDER

Floats = NDArray[np.float32]
Unpack = Callable[[str, int, int, memoryview], Floats]
"""Codec, rows, columns and packed bytes of a matrix, to its values [rows, cols]."""


class Weights(Protocol):
    """Where an executor that computes in f32 takes its weights from."""

    def dense(self, name: str) -> Floats:
        """A matrix [rows, cols] or a vector [n]. Raises KeyError for a name that the model does not have."""
        ...

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        """`gate`, `up` [width, hidden], `down` [hidden, width] and perhaps their biases; `layer` counts MoE layers."""
        ...


class FtwWeights:
    """Dequantises the tensors of an FTW folder, each time it is asked; columns come in the order of the input."""

    def __init__(self, ftw: Ftw, unpack: Unpack) -> None:
        self._dense = ftw.dense
        self._unpack = unpack
        self._banks = {layer: (bank, place) for bank in ftw.banks for place, layer in enumerate(bank.layers)}

    def dense(self, name: str) -> Floats:
        tensor = self._dense[name]
        if tensor.vector:
            return np.frombuffer(tensor.data, np.float32, tensor.cols)
        matrix = self._unpack(tensor.codec, tensor.rows, tensor.cols, tensor.data)
        return _put_back(matrix, self.dense(name + ORDER)) if name + ORDER in self._dense else matrix

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        bank, place = self._banks[layer]
        record = bank.record(place * bank.experts_per_layer + expert)
        return self._tensors_of(bank, record)

    def _tensors_of(self, bank: Bank, record: memoryview) -> dict[str, Floats]:
        tensors: dict[str, Floats] = {}
        for field in bank.fields:
            data = record[field.offset : field.offset + field.stored_bytes]
            if field.name == GATE_UP:
                tensors["gate"], tensors["up"] = (self._matrix(field, half) for half in _tiles_in_turn(field, data))
            elif field.shape.vector:
                tensors[field.name] = np.frombuffer(data, np.float32, field.shape.cols)
            else:
                tensors[field.name] = self._matrix(field, data)
        orders = {name: tensors.pop(name) for name in list(tensors) if name.endswith(ORDER)}
        return tensors | {
            name.removesuffix(ORDER): _put_back(tensors[name.removesuffix(ORDER)], order)
            for name, order in orders.items()
        }

    def _matrix(self, field: Field, data: memoryview) -> Floats:
        return self._unpack(field.shape.codec, field.shape.rows, field.shape.cols, data)


def _put_back(matrix: Floats, order: Floats) -> Floats:
    """The matrix whose column `order[i]` is column i of `matrix`."""
    put_back = np.empty_like(matrix)
    put_back[:, order.astype(np.int64)] = matrix
    return put_back


def _tiles_in_turn(field: Field, data: memoryview) -> tuple[memoryview, memoryview]:
    """The two matrices whose tiles take turns in `data`, each as one stream."""
    tile_bytes = CODECS[field.shape.codec].tile_bytes(field.shape.cols)
    tiles = np.frombuffer(data, np.uint8).reshape(-1, 2, tile_bytes)
    return memoryview(tiles[:, 0].tobytes()), memoryview(tiles[:, 1].tobytes())
