"""Turning planned tensors into the bytes of an FTW file, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from engine.base.errors import CorruptFileError
from engine.files.codecs import CODECS, FORMS, TILE_ROWS
from engine.files.gather import Gather
from engine.files.plan import Item, Part
from engine.files.source_file import Bytes
from engine.spec.layout import Matrix, Vector

Pack = Callable[[str, Bytes, int, Bytes, int], None]
"""Packs raw rows [rows, bytes a row] of `cols` values of a form: tile i starts at byte i * stride of the output.

Raises ValueError for a scale that is no finite number.
"""

CHUNK_BYTES = 1 << 20  # of raw rows: small enough for the second-level cache


def native_pack(form: str, raw: Bytes, cols: int, out: Bytes, stride: int) -> None:
    """The packer of the C++ module."""
    from engine import _native

    _native.pack_rows(form, raw, cols, out, stride)


def item_bytes(item: Item, gather: Gather, pack: Pack) -> Iterator[Bytes]:
    """The bytes of an item in order. A chunk is valid until the next one is asked for."""
    written = 0
    for part in item.parts:
        yield from _part_bytes(part, gather, pack)
        written += part.stored_bytes
    if item.size > written:
        yield np.zeros(item.size - written, np.uint8)


def _part_bytes(part: Part, gather: Gather, pack: Pack) -> Iterator[Bytes]:
    if isinstance(part.sources, Vector):
        data = np.zeros(part.stored_bytes, np.uint8)
        values = gather.values(part.sources).view(np.uint8)
        data[: len(values)] = values
        yield data
    else:
        yield from _matrix_bytes(part.sources, gather, pack)


def _matrix_bytes(matrices: tuple[Matrix, ...], gather: Gather, pack: Pack) -> Iterator[Bytes]:
    """Tiles of matrices of one shape, in turn."""
    form = FORMS[gather.form(matrices[0])]
    rows, cols = matrices[0].rows, matrices[0].cols
    tile_bytes = CODECS[form.codec].tile_bytes(cols)
    tiles_a_chunk = max(1, CHUNK_BYTES // (form.row_bytes(cols) * TILE_ROWS * len(matrices)))
    step = tiles_a_chunk * TILE_ROWS
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        tiles = -(-(stop - start) // TILE_ROWS)
        out = np.empty((tiles, len(matrices), tile_bytes), np.uint8)
        for turn, matrix in enumerate(matrices):
            raw = gather.rows(matrix, start, stop)
            try:
                pack(form.name, raw, cols, out.reshape(-1)[turn * tile_bytes :], out.strides[0])
            except ValueError as error:
                raise CorruptFileError(f"The tensor {matrix.pieces[0].tensor} cannot be used: {error}") from None
        yield out.reshape(-1)
