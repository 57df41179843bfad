"""Words of eight 4-bit values, moved and taken apart without a loop over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.files.source_file import Bytes
from engine.files.sources.tensors import Order

Words = npt.NDArray[np.uint32]

IN_WORD = 8


def unpack_words(words: Words, places: Sequence[int] = range(IN_WORD)) -> Bytes:
    """Words [rows, n] to their values [rows, 8 n]: nibble i, the lowest first, is value `places[i]` of its word's."""
    values = np.empty((*words.shape, IN_WORD), np.uint8)
    for nibble, place in enumerate(places):
        values[..., place] = words >> np.uint32(4 * nibble) & np.uint32(15)
    return values.reshape(len(words), -1)


def gather_nibbles(words: Words, order: Order) -> Words:
    """Words [n / 8, cols] are n rows of nibbles, row i being nibble i % 8; row i becomes what row `order[i]` was.

    Between, every nibble has a byte: rows move as a whole, and what is done to them is done to a quarter of the bytes.
    """
    rows, cols = words.shape
    values = np.empty((rows, IN_WORD, cols), np.uint8)
    for nibble in range(IN_WORD):
        values[:, nibble] = words >> np.uint32(4 * nibble)  # of which the lowest byte is kept
    values &= 15
    values = values.reshape(-1, cols).take(order, axis=0).reshape(rows, IN_WORD, cols)
    values[:, 1::2] <<= 4
    values[:, 0::2] |= values[:, 1::2]
    out = np.empty((rows, cols, 4), np.uint8)
    for byte in range(4):
        out[..., byte] = values[:, 2 * byte]
    return out.view("<u4")[..., 0]


def transpose_nibbles(words: Words) -> None:
    """Words [.., 8, n] in place: nibble i of word j and nibble j of word i change places.

    Three rounds exchange squares of one, two and four nibbles, as bit matrices are transposed.
    """
    for distance, mask in ((1, 0x0F0F0F0F), (2, 0x00FF00FF), (4, 0x0000FFFF)):
        shift, low = np.uint32(4 * distance), np.uint32(mask)
        pairs = words.reshape(-1, IN_WORD // (2 * distance), 2, distance, words.shape[-1])
        one, other = pairs[:, :, 0], pairs[:, :, 1]
        moved = one >> shift
        moved ^= other
        moved &= low
        other ^= moved
        moved <<= shift
        one ^= moved


def take_columns(pairs: Bytes, order: Order) -> Bytes:
    """Pairs of columns [rows, n / 2], the first in the low nibble; column i becomes what column `order[i]` was."""
    values = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(len(pairs), -1).take(order, axis=1)
    moved: Bytes = values[:, 0::2] | values[:, 1::2] << 4
    return moved
