"""The codecs a matrix may be kept in: the size of its raw rows and of its packed tiles.

Raw rows are what checkpoints hold: plain values, or ggml's blocks of 32. Packed tiles are what FTW files hold;
docs/numerics.md describes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.base.errors import UnsupportedError

TILE_ROWS = 16
SCALE_LINE = 64


@dataclass(frozen=True)
class Codec:
    """Sizes of one codec, in values and bytes.

    A block is `block` values of one row and takes `block_bytes` raw. In a tile of 16 rows, `group` blocks share a line
    of scales of 64 bytes, and each block takes `code_bytes`. Float codecs have blocks of one value and no scales.
    `cols_multiple` is what the columns are padded to.
    """

    name: str
    block: int
    block_bytes: int
    group: int
    code_bytes: int
    cols_multiple: int

    @property
    def is_float(self) -> bool:
        return self.block == 1

    def row_bytes(self, cols: int) -> int:
        """Bytes of one raw row of `cols` values; `cols` must be whole blocks."""
        if cols % self.block:
            raise UnsupportedError(f"{cols} columns are not whole blocks of {self.block} values, as {self.name} needs.")
        return cols // self.block * self.block_bytes

    def tile_bytes(self, cols: int) -> int:
        """Bytes of one packed tile: 16 rows of `cols` values."""
        padded = -(-cols // self.cols_multiple) * self.cols_multiple
        blocks = padded // self.block
        scale_lines = -(-blocks // self.group) if self.group else 0
        return scale_lines * SCALE_LINE + blocks * self.code_bytes

    def packed_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a packed matrix; missing rows of the last tile are there as zeros."""
        return -(-rows // TILE_ROWS) * self.tile_bytes(cols)


CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("f32", block=1, block_bytes=4, group=0, code_bytes=TILE_ROWS * 4, cols_multiple=4),
        Codec("f16", block=1, block_bytes=2, group=0, code_bytes=TILE_ROWS * 2, cols_multiple=4),
        Codec("bf16", block=1, block_bytes=2, group=0, code_bytes=TILE_ROWS * 2, cols_multiple=4),
        Codec("q4_0", block=32, block_bytes=18, group=2, code_bytes=256, cols_multiple=32),
        Codec("q4_1", block=32, block_bytes=20, group=1, code_bytes=256, cols_multiple=32),
        Codec("q8_0", block=32, block_bytes=34, group=2, code_bytes=512, cols_multiple=32),
        Codec("mxfp4", block=32, block_bytes=17, group=4, code_bytes=256, cols_multiple=32),
    )
}


def align(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple
