"""The codecs a matrix may be kept in, and the raw forms in which rows reach the packer, with their sizes.

Raw rows are what checkpoints hold, or what a reader makes of it without loss: plain values, ggml's blocks, or blocks
of scale and codes. Packed tiles are what FTW files hold. docs/numerics.md describes both; native/core/codec.h holds the
same tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.base.errors import UnsupportedError

TILE_ROWS = 16
LINE = 64

Kind = Literal["plain", "scaled", "integer"]


@dataclass(frozen=True)
class Codec:
    """Sizes of one codec's packed form, in values and bytes.

    `block` values of a row are decoded together and take `code_bytes` in a row. `group` blocks share a header of
    `header_lines` lines of 64 bytes; a codec with `row_line` has one line more a tile. A row is a multiple of
    `cols_unit` values. `kind`: plain values, 8-bit floats under scales, or integer codes.
    """

    name: str
    kind: Kind
    block: int
    cols_unit: int
    group: int
    header_lines: int
    code_bytes: int
    row_line: bool = False

    @property
    def is_float(self) -> bool:
        """Whether activations stay f32."""
        return self.kind != "integer"

    def valid_cols(self, cols: int) -> bool:
        """Whether a row of `cols` values can be coded."""
        return cols > 0 and cols % self.cols_unit == 0

    def tile_bytes(self, cols: int) -> int:
        """Bytes of one packed tile: 16 rows of `cols` values."""
        padded = align(cols, 4 if self.is_float else self.block)
        groups = -(-cols // (self.block * self.group)) if self.group else 0
        return (groups * self.header_lines + self.row_line) * LINE + padded * self.code_bytes * TILE_ROWS // self.block

    def packed_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a packed matrix; missing rows of the last tile are there as zeros."""
        return -(-rows // TILE_ROWS) * self.tile_bytes(cols)


@dataclass(frozen=True)
class Form:
    """A raw row: `row_header` bytes, then blocks of `block` values, each with `scale_bytes` and codes.

    A code has `code_bits`; the last block may be shorter. Rows of the form become rows of `codec`.
    """

    name: str
    codec: str
    row_header: int
    block: int
    scale_bytes: int
    code_bits: int

    def row_bytes(self, cols: int) -> int:
        """Bytes of one raw row of `cols` values. Raises UnsupportedError for columns that the codec cannot hold."""
        codec = CODECS[self.codec]
        if not codec.valid_cols(cols):
            raise UnsupportedError(
                f"{cols} columns are not whole blocks of {codec.cols_unit} values, as {self.name} needs.",
                "Use a checkpoint in another codec.",
            )
        return self.row_header + -(-cols // self.block) * self.scale_bytes + cols * self.code_bits // 8


INTEGER_BYTES = {"i32": 4, "i64": 8}
"""Types of integers that a vector may be published in; it is kept in f32 where that holds every one."""

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("f32", "plain", block=1, cols_unit=1, group=0, header_lines=0, code_bytes=4),
        Codec("f16", "plain", block=1, cols_unit=1, group=0, header_lines=0, code_bytes=2),
        Codec("bf16", "plain", block=1, cols_unit=1, group=0, header_lines=0, code_bytes=2),
        Codec("q8_0", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=32),
        Codec("q4_0", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=16),
        Codec("q4_1", "integer", block=32, cols_unit=32, group=1, header_lines=1, code_bytes=16),
        Codec("q5_0", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=20),
        Codec("q5_1", "integer", block=32, cols_unit=32, group=1, header_lines=1, code_bytes=20),
        Codec("mxfp4", "integer", block=32, cols_unit=32, group=4, header_lines=1, code_bytes=16),
        Codec("iq4_nl", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=16),
        Codec("iq4_xs", "integer", block=32, cols_unit=256, group=8, header_lines=3, code_bytes=16),
        Codec("q2_k", "integer", block=32, cols_unit=256, group=8, header_lines=5, code_bytes=8),
        Codec("q3_k", "integer", block=32, cols_unit=256, group=8, header_lines=5, code_bytes=12),
        Codec("q4_k", "integer", block=32, cols_unit=256, group=8, header_lines=5, code_bytes=16),
        Codec("q5_k", "integer", block=32, cols_unit=256, group=8, header_lines=5, code_bytes=20),
        Codec("q6_k", "integer", block=32, cols_unit=256, group=8, header_lines=5, code_bytes=24),
        Codec("nvfp4", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=16, row_line=True),
        Codec("int4_32", "integer", block=32, cols_unit=32, group=2, header_lines=1, code_bytes=16, row_line=True),
        Codec("int4_32z", "integer", block=32, cols_unit=32, group=1, header_lines=1, code_bytes=16, row_line=True),
        Codec("int4_128z", "integer", block=32, cols_unit=32, group=4, header_lines=1, code_bytes=16, row_line=True),
        Codec("fp8", "scaled", block=128, cols_unit=1, group=1, header_lines=1, code_bytes=128),
        Codec("mxfp8", "scaled", block=32, cols_unit=32, group=4, header_lines=1, code_bytes=32),
    )
}

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("f32", "f32", row_header=0, block=1, scale_bytes=0, code_bits=32),
        Form("f16", "f16", row_header=0, block=1, scale_bytes=0, code_bits=16),
        Form("bf16", "bf16", row_header=0, block=1, scale_bytes=0, code_bits=16),
        Form("q8_0", "q8_0", row_header=0, block=32, scale_bytes=2, code_bits=8),
        Form("q4_0", "q4_0", row_header=0, block=32, scale_bytes=2, code_bits=4),
        Form("q4_1", "q4_1", row_header=0, block=32, scale_bytes=4, code_bits=4),
        Form("q5_0", "q5_0", row_header=0, block=32, scale_bytes=2, code_bits=5),
        Form("q5_1", "q5_1", row_header=0, block=32, scale_bytes=4, code_bits=5),
        Form("mxfp4", "mxfp4", row_header=0, block=32, scale_bytes=1, code_bits=4),
        Form("iq4_nl", "iq4_nl", row_header=0, block=32, scale_bytes=2, code_bits=4),
        Form("iq4_xs", "iq4_xs", row_header=0, block=256, scale_bytes=8, code_bits=4),
        Form("q2_k", "q2_k", row_header=0, block=256, scale_bytes=20, code_bits=2),
        Form("q3_k", "q3_k", row_header=0, block=256, scale_bytes=14, code_bits=3),
        Form("q4_k", "q4_k", row_header=0, block=256, scale_bytes=16, code_bits=4),
        Form("q5_k", "q5_k", row_header=0, block=256, scale_bytes=16, code_bits=5),
        Form("q6_k", "q6_k", row_header=0, block=256, scale_bytes=18, code_bits=6),
        Form("nvfp4", "nvfp4", row_header=4, block=32, scale_bytes=2, code_bits=4),
        Form("int4_32", "int4_32", row_header=4, block=32, scale_bytes=2, code_bits=4),
        Form("int4_32z", "int4_32z", row_header=4, block=32, scale_bytes=4, code_bits=4),
        Form("int4_128z", "int4_128z", row_header=4, block=128, scale_bytes=4, code_bits=4),
        Form("fp8", "fp8", row_header=0, block=128, scale_bytes=4, code_bits=8),
        Form("mxfp8", "mxfp8", row_header=0, block=32, scale_bytes=1, code_bits=8),
        Form("mxfp4_pairs", "mxfp4", row_header=0, block=32, scale_bytes=1, code_bits=4),
    )
}


def align(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple
