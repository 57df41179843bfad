"""A second, independent reading of layouts: pieces cut by numpy straight out of safetensors files, nothing packed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine.spec.families import resolve
from engine.spec.layout import Matrix, Piece, Vector
from engine.spec.schema import Spec

Floats = NDArray[np.float32]


class LayoutWeights:
    """Fulfils `engine.program.weights.Weights` for an f32 checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._tensors = {
            name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()
        }
        shapes = {name: ("f32", tensor.shape) for name, tensor in self._tensors.items()}
        self.spec, layout = resolve(json.loads((folder / "config.json").read_text()), shapes)
        self._dense: dict[str, Matrix | Vector] = {item.name: item for item in (*layout.matrices, *layout.vectors)}
        self._experts = {(record.layer, record.expert): record for record in layout.experts}

    spec: Spec

    @property
    def dense_names(self) -> list[str]:
        return list(self._dense)

    @property
    def expert_names(self) -> list[tuple[int, int]]:
        """Layers and experts."""
        return list(self._experts)

    def dense(self, name: str) -> Floats:
        return self._read(self._dense[name])

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        record = self._experts[layer, expert]
        items: Sequence[Matrix | Vector] = (*record.matrices, *record.vectors)
        return {item.name: self._read(item) for item in items}

    def _read(self, item: Matrix | Vector) -> Floats:
        flat = isinstance(item, Vector)
        values = np.concatenate([self._cut(piece, flat) for piece in item.pieces])
        expected = (item.length,) if isinstance(item, Vector) else (item.rows, item.cols)
        assert values.shape == expected, f"{item.name} is {values.shape}, not {expected}"
        return values

    def _cut(self, piece: Piece, flat: bool) -> Floats:
        tensor = self._tensors[piece.tensor]
        if piece.index >= 0:
            tensor = tensor[piece.index]
        if flat:
            return tensor.reshape(-1)[piece.start : piece.stop or None : piece.step] + np.float32(piece.plus)
        if piece.transpose:
            tensor = tensor.T
        return tensor[piece.start : piece.stop or None : piece.step, piece.col_start : piece.col_stop or None]
