"""Token ids to text, one token at a time, joining exactly to the text of all of them at once."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.base.errors import UnsupportedError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECEWISE = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"})


def byte_alphabet() -> dict[str, int]:
    """The printable character of each byte in byte-level vocabularies, as GPT-2 chose them.

    Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and up in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


class Decoder(Protocol):
    """The text of a sequence of tokens as it grows. Ids that the vocabulary lacks are no text."""

    def push(self, token: int) -> str:
        """The text that `token` makes certain: never half a character."""

    def finish(self) -> str:
        """What was held back; incomplete bytes become U+FFFD."""


class Decoding:
    """How a vocabulary writes text; makes a `Decoder` for each sequence. Pieces are computed once and kept."""

    def __init__(self, tokenizer: Tokenizer, added: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._added = frozenset(added)
        self._bytes: dict[int, bytes] = {}
        self._pieces: dict[int, str] = {}
        self._bytes_of = byte_alphabet()
        steps = decoder_steps(tokenizer)
        self.byte_level = steps == ["ByteLevel"]
        self.byte_tokens = _byte_tokens(tokenizer) if "ByteFallback" in steps else {}
        """The bytes that tokens written `<0xE2>` stand for."""
        if not self.byte_level and not _PIECEWISE.issuperset(steps):
            raise UnsupportedError(
                f"The tokenizer decodes with {', '.join(steps)}, which this release does not know.",
                "Take a checkpoint with a byte-level or SentencePiece tokenizer.",
            )
        self._anchor = [] if self.byte_level else self._find_anchor()
        self._anchor_text = tokenizer.decode(self._anchor, skip_special_tokens=False)

    def decoder(self) -> Decoder:
        """A decoder at the start of a sequence."""
        return _ByteDecoder(self) if self.byte_level else _PieceDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in the middle of a text: half a character may be among them."""
        if self.byte_level:
            return self.raw_bytes(token)
        byte = self.byte_tokens.get(token)
        return self.piece(token).encode() if byte is None else bytes([byte])

    def raw_bytes(self, token: int) -> bytes:
        """The bytes of one token of a byte-level vocabulary."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._byte_level_bytes(token)
        return known

    def piece(self, token: int) -> str:
        """The text of one token in the middle of a text, for vocabularies that are not byte-level."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self.text_after_anchor([token])
        return known

    def knows(self, token: int) -> bool:
        """Whether the vocabulary has `token`; a model's output may be wider."""
        return self._tokenizer.id_to_token(token) is not None

    def text_of_all(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def text_after_anchor(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` add to a text that goes before them."""
        return self.text_of_all([*self._anchor, *tokens])[len(self._anchor_text) :]

    def _byte_level_bytes(self, token: int) -> bytes:
        text: str = self._tokenizer.id_to_token(token) or ""
        # An added token is written as it is: `ö` is not the byte 0xF6, though the alphabet has it for that.
        if token not in self._added and all(char in self._bytes_of for char in text):
            return bytes(self._bytes_of[char] for char in text)
        return text.encode("utf-8", "replace")

    def _find_anchor(self) -> list[int]:
        """A token that stands before another without changing it: one letter. Sequences begin otherwise than they go
        on (a leading space is stripped), and with an anchor a single token shows its text in the middle."""
        for char in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
            token = self._tokenizer.token_to_id(char)
            if token is not None and token not in self._added:
                return [token]
        raise UnsupportedError(
            "The vocabulary has no single Latin letter, so its tokens cannot be decoded one by one.",
            "Take a checkpoint with a complete tokenizer.json.",
        )


class _ByteDecoder:
    """Byte-level vocabularies: bytes in a row, read as UTF-8."""

    def __init__(self, decoding: Decoding) -> None:
        self._raw_bytes = decoding.raw_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._raw_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _PieceDecoder:
    """Other vocabularies: a token adds its piece, except at the start and in a run of byte tokens.

    A run of byte tokens is read as UTF-8 as a whole once another token ends it; if it is not valid, each of its
    bytes becomes U+FFFD. So a run is held back until its end.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._started = False
        self._held: list[int] = []

    def push(self, token: int) -> str:
        decoding = self._decoding
        if token in decoding.byte_tokens:
            self._held.append(token)
            return ""
        if self._started and not self._held:
            return decoding.piece(token)
        if not decoding.knows(token):
            return ""
        self._held.append(token)
        return self._release()

    def finish(self) -> str:
        return self._release()

    def _release(self) -> str:
        if self._started:
            text = self._decoding.text_after_anchor(self._held)
        else:  # a leading space may be stripped, so the start is read again until there is text
            text = self._decoding.text_of_all(self._held)
            self._started = bool(text)
        if self._started:
            self._held.clear()
        return text


def _byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    spellings = {spelling: byte for byte in range(256) for spelling in (f"<0x{byte:02X}>", f"<0x{byte:02x}>")}
    found = ((tokenizer.token_to_id(spelling), byte) for spelling, byte in spellings.items())
    return {token: byte for token, byte in found if token is not None}


def decoder_steps(tokenizer: Tokenizer) -> list[str]:
    """The kinds of the tokenizer's decoding steps, in order. A step that strips a text's end is named `Strip right`."""
    if tokenizer.decoder is None:
        raise UnsupportedError(
            "The tokenizer.json names no decoder, so token ids cannot be turned back into text.",
            "Fetch the checkpoint's tokenizer.json again.",
        )
    state = json.loads(tokenizer.decoder.__getstate__())
    return [f"{step['type']}{' right' if step.get('stop') else ''}" for step in state.get("decoders", [state])]
