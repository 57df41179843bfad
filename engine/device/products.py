"""How products are launched: the blocks, grids and sizes that native/cuda/{pack,linear,expert}*.cu and group.cu expect.

`linear` and `expert` read a matrix once for each row of activations, `linear_many` and `expert_many` once for 32 of
them; blocks that find nothing to do end at once, so a grid may be larger than what is live.
"""

from __future__ import annotations

from engine.device.driver import Grid
from engine.files.codecs import CODECS, TILE_ROWS

FEW_THREADS = 64
"""Threads of a block of `linear`, `expert` and `head_linear`: a warp a tile. Any whole number of warps is right."""
MANY_THREADS = 128
"""Threads of a block of `linear_many` and `expert_many`; no other number is right."""
PACK_THREADS = 128
"""Threads of a block of `pack_q16`; any whole number of warps is right."""
ROW_THREADS = 128
"""Threads of a block of `gather_f32`, `expert_glu` and `expert_bias`: a value each."""
GROUP_THREADS = 1024
"""Threads of the one block of `group_pairs`: any whole number of warps up to this."""

GROUP_TOKENS = 32
MANY_ROWS = 9
"""From so many rows of activations on, reading the matrix once for all beats reading it once for each."""

_WARP = 32
_TILES_OF_MANY = 2
_Q16_BLOCK, _Q16_BYTES, _Q16_THREADS = 32, 96, 8  # QuantBlock of native/kernels/activations.h
_ALIGNMENT = 16


def input_bytes(codec: str, cols: int) -> int:
    """Bytes from one row of activations to the next: of blocks rounded to 16 bits, or of f32 values."""
    return -(-cols * 4 // _ALIGNMENT) * _ALIGNMENT if CODECS[codec].is_float else q16_bytes(cols)


def q16_bytes(cols: int) -> int:
    """Bytes of a row rounded to 16 bits: whole blocks, the last perhaps filled up with zeros."""
    return -(-cols // _Q16_BLOCK) * _Q16_BYTES


def pack_grid(cols: int, rows: int) -> Grid:
    """Of `pack_q16`."""
    return -(-cols // _Q16_BLOCK * _Q16_THREADS // PACK_THREADS), rows, 1


def row_grid(values: int, rows: int) -> Grid:
    """Of `gather_f32`, `expert_glu` and `expert_bias`: rows of so many values."""
    return -(-values // ROW_THREADS), rows, 1


def few_grid(m_rows: int, rows: int) -> Grid:
    """Of `linear` for so many tokens, and of `expert` for so many pairs."""
    return -(-_tiles(m_rows) * _WARP // FEW_THREADS), rows, 1


def many_grid(m_rows: int, groups: int) -> Grid:
    """Of `linear_many` and `expert_many`; `groups` as `token_groups` or `most_groups` counts them."""
    return -(-_tiles(m_rows) // _TILES_OF_MANY), groups, 1


def token_groups(tokens: int) -> int:
    """Groups of tokens that `linear_many` takes at a time."""
    return -(-tokens // GROUP_TOKENS)


def most_groups(pairs: int, experts: int) -> int:
    """The most groups of pairs of one expert that `group_pairs` can make of so many pairs."""
    return min(pairs, experts + pairs // GROUP_TOKENS)


def starts_bytes(pairs: int, experts: int) -> int:
    """Bytes of `starts`, which `group_pairs` writes and `expert_many` reads; `order` has an int32 a pair."""
    return 4 * (1 + 2 * most_groups(pairs, experts))


def _tiles(m_rows: int) -> int:
    return -(-m_rows // TILE_ROWS)
