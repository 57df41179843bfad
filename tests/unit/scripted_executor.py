"""An executor that says what its prompt tells it to: the text between the last `[[[` and `]]]` of its messages.

Tokens are bytes. What has been said of the script so far is what follows the last `assistant` header in the sequence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from engine.program.executor import Floats
from tests.unit.fake_executor import VOCAB, FakeExecutor

TURN, END = 256, 257  # `<|im_start|>` and `<|im_end|>`
_HEADER = b"assistant\n"


class ScriptedExecutor(FakeExecutor):
    """A `FakeExecutor` whose most likely token is the next one of the script."""

    def logits_after(self, prefix: Sequence[int]) -> Floats:
        logits = np.zeros(VOCAB, np.float32)
        logits[next_token(prefix)] = 100.0
        return logits


def next_token(prefix: Sequence[int]) -> int:
    """The token that the script has after `prefix`; the end token behind it, and where there is no script."""
    ids = [int(token) for token in prefix]
    begin = len(ids) - 1 - ids[::-1].index(TURN) if TURN in ids else 0
    said = _text(ids[begin + 1 :]).removeprefix(_HEADER)
    scripts = re.findall(rb"\[\[\[(.*?)\]\]\]", _text(ids[:begin]), re.DOTALL)
    if not scripts or not scripts[-1].startswith(said) or len(said) >= len(scripts[-1]):
        return END
    return int(_SYMBOLS.index(scripts[-1][len(said)]))


def _byte_symbols() -> list[int]:
    """The byte of each of the first 256 ids: byte-level alphabets are sorted by the characters that stand for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: byte for byte in printable} | {byte: 256 + index for index, byte in enumerate(others)}
    return sorted(range(256), key=characters.__getitem__)


_SYMBOLS = _byte_symbols()


def _text(ids: Sequence[int]) -> bytes:
    return bytes(_SYMBOLS[token] for token in ids if token < 256)
