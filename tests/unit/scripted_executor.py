"""An executor that says what its prompt tells it to: the text between `[[[` and `]]]` of a message.

Of several such texts in the last message that has any the first is the first answer after it, and so on. Once something
else has been said than the script, such as the end of a thought that was too long, it goes on behind its own thought.

Tokens are bytes. What has been said of the script so far is what follows the last `assistant` header in the sequence.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np

from engine.program.executor import Floats
from tests.unit.fake_executor import VOCAB, FakeExecutor

TURN, END = 256, 257  # `<|im_start|>` and `<|im_end|>`
_HEADER = b"assistant\n"
_THOUGHT_END = b"</think>"


class ScriptedExecutor(FakeExecutor):
    """A `FakeExecutor` whose most likely token is the next one of the script."""

    crash = -1  # every byte is text here

    def logits_after(self, prefix: Sequence[int]) -> Floats:
        logits = np.zeros(VOCAB, np.float32)
        logits[next_token(prefix)] = 100.0
        return logits


def next_token(prefix: Sequence[int]) -> int:
    """The token that the script has after `prefix`; the end token behind it, and where there is no script."""
    ids = [int(token) for token in prefix]
    turns = [place for place, token in enumerate(ids) if token == TURN]
    begin = turns[-1] if turns else 0
    said = _text(ids[begin + 1 :]).removeprefix(_HEADER)
    answers = 0  # after the message with the scripts, and before this one
    for start, end in reversed(list(itertools.pairwise(turns))):
        message = _text(ids[start + 1 : end])
        scripts = re.findall(rb"\[\[\[(.*?)\]\]\]", message, re.DOTALL)
        if scripts and not message.startswith(_HEADER):
            script = scripts[min(answers, len(scripts) - 1)]
            if not script.startswith(said):
                script, said = (text.rpartition(_THOUGHT_END)[2] for text in (script, said))
            return int(_SYMBOLS.index(script[len(said)])) if script.startswith(said) and script[len(said) :] else END
        answers += message.startswith(_HEADER)
    return END


def _byte_symbols() -> list[int]:
    """The byte of each of the first 256 ids: byte-level alphabets are sorted by the characters that stand for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: byte for byte in printable} | {byte: 256 + index for index, byte in enumerate(others)}
    return sorted(range(256), key=characters.__getitem__)


_SYMBOLS = _byte_symbols()


def _text(ids: Sequence[int]) -> bytes:
    return bytes(_SYMBOLS[token] for token in ids if token < 256)
