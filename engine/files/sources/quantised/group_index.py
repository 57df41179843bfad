"""The group of every column of a matrix whose columns were quantised in another order than they are stored: g_idx."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.base.errors import CorruptFileError
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.scheme import read_lines
from engine.files.sources.tensors import FileTensor, Order

_NEVER_SET = -1


@dataclass(frozen=True)
class GroupIndex:
    """`tensor` I32 [cols] has the group of every column, of `group` columns each but for the last.

    Read as a tensor it is the order of the columns (f32, exact): those of the first group, then those of the next.
    """

    name: str
    tensor: FileTensor
    group: int
    form: str = "f32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        return self.columns().astype(np.float32).view(np.uint8).reshape(1, -1)[start:stop]

    def columns(self) -> Order:
        """The columns, group after group, ascending within a group.

        Raises CorruptFileError for a group that does not exist or has more or fewer columns than the others.
        """
        cols = self.shape[0]
        index = read_lines(self.tensor, 4 * cols, 0, 1).view("<i4").reshape(-1)
        if (index == _NEVER_SET).all():
            return np.arange(cols)
        groups = -(-cols // self.group)
        if index.min() < 0 or index.max() >= groups:
            wrong = int(np.flatnonzero((index < 0) | (index >= groups))[0])
            raise self._misfit(f"puts column {wrong} into group {index[wrong]} of {groups}")
        sizes = np.bincount(index, minlength=groups)
        expected = np.full(groups, self.group)
        expected[-1] = cols - self.group * (groups - 1)
        if not np.array_equal(sizes, expected):
            wrong = int(np.flatnonzero(sizes != expected)[0])
            raise self._misfit(f"puts {sizes[wrong]} columns into group {wrong} instead of {expected[wrong]}")
        return np.argsort(index.astype(np.min_scalar_type(groups)), kind="stable")  # small types are sorted faster

    def check_ascending(self) -> None:
        """Raises CorruptFileError unless the groups follow each other as they are stored."""
        moved = np.flatnonzero(self.columns() != np.arange(self.shape[0]))
        if len(moved):
            raise self._misfit(f"moves column {moved[0]}, though config.json says that columns keep their order")

    def _misfit(self, what: str) -> CorruptFileError:
        return CorruptFileError(f"The tensor {self.name} {what}.", "Fetch the checkpoint again, or use another one.")
