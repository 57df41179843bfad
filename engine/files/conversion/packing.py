"""Turning planned tensors into the bytes of an FTW file, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from engine.files.codecs import CODECS, FORMS, TILE_ROWS
from engine.files.conversion.bad_rows import bad_row, unusable
from engine.files.conversion.gather import Gather
from engine.files.conversion.plan import Item, Part
from engine.files.conversion.requantise import Requantiser
from engine.files.source_file import Bytes
from engine.spec.layout import Matrix, Vector

Pack = Callable[[str, Bytes, int, Bytes, int], None]
"""Packs raw rows [rows, bytes a row] of `cols` values of a form: tile i starts at byte i * stride of the output.

Raises ValueError for a weight or a scale that is no finite number.
"""

CHUNK_BYTES = 1 << 20  # of raw rows: small enough for the second-level cache


def native_pack(form: str, raw: Bytes, cols: int, out: Bytes, stride: int) -> None:
    """The packer of the C++ module."""
    from engine import _native

    _native.pack_rows(form, raw, cols, out, stride)


def item_bytes(item: Item, gather: Gather, pack: Pack, requantiser: Requantiser) -> Iterator[Bytes]:
    """The bytes of an item in order; rows of another codec than its parts' go through `requantiser`.

    A chunk is valid until the next one is asked for. Raises CorruptFileError, naming tensor and row, for what cannot
    be packed.
    """
    written = 0
    for part in item.parts:
        yield from _part_bytes(part, gather, pack, requantiser)
        written += part.stored_bytes
    if item.size > written:
        yield np.zeros(item.size - written, np.uint8)


def _part_bytes(part: Part, gather: Gather, pack: Pack, requantiser: Requantiser) -> Iterator[Bytes]:
    if isinstance(part.sources, Vector):
        data = np.zeros(part.stored_bytes, np.uint8)
        values = gather.values(part.sources).view(np.uint8)
        data[: len(values)] = values
        yield data
    else:
        yield from _matrix_bytes(part.sources, part.shape.codec, gather, pack, requantiser)


def _matrix_bytes(
    matrices: tuple[Matrix, ...], codec: str, gather: Gather, pack: Pack, requantiser: Requantiser
) -> Iterator[Bytes]:
    """Tiles of matrices of one shape in `codec`, in turn."""
    rows, cols = matrices[0].rows, matrices[0].cols
    forms = [FORMS[gather.form(matrix)] for matrix in matrices]
    tile_bytes = CODECS[codec].tile_bytes(cols)
    row_bytes = sum(form.row_bytes(cols) if form.codec == codec else 4 * cols for form in forms)
    step = max(1, CHUNK_BYTES // (row_bytes * TILE_ROWS)) * TILE_ROWS
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        tiles = -(-(stop - start) // TILE_ROWS)
        out = np.empty((tiles, len(matrices), tile_bytes), np.uint8)
        for turn, (matrix, form) in enumerate(zip(matrices, forms, strict=True)):
            raw, packed_form = gather.rows(matrix, start, stop), form.name
            try:
                if form.codec != codec:
                    tensor, _ = gather.origin(matrix, start)
                    raw, packed_form = requantiser.encode(tensor, form.name, raw, cols, codec), codec
                pack(packed_form, raw, cols, out.reshape(-1)[turn * tile_bytes :], out.strides[0])
            except ValueError as error:
                row, what = bad_row(error, matrix.name)
                tensor, there = gather.origin(matrix, start + row)
                raise unusable(gather.files(matrix), tensor, there, what) from error
            del raw  # before the next is read
        yield out.reshape(-1)
