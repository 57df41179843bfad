"""Streamed text: certain pieces that join to the decoded text, cut at the first stop string."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import text_models
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.base.errors import UnsupportedError, UsageError
from engine.text.decoding import byte_alphabet
from engine.text.stream import StopScanner
from engine.text.text import Text


def word_piece() -> Tokenizer:
    """Words, and `##` pieces that join to the word before."""
    pieces = ["[UNK]", "a", "hello", "world", "##s", "##ing", ".", "##.", ",", "日", "##本", "🙂", "don", "'", "t"]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece("##", cleanup=True)
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def metaspace() -> Tokenizer:
    pieces = ["▁", "a", "▁a", "▁hello", "s", "▁▁▁", "日本", "🙂", "\u200d", "▁日", "<unk>"]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


def bytes_only() -> Tokenizer:
    """One token a byte, two special tokens, and added tokens of other characters."""
    tokenizer = text_models.byte_level(256)
    tokenizer.add_special_tokens(text_models.special("<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(text_models.soft("<think>", "日本", "a b"))
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": bytes_only,
    "byte level": text_models.byte_level,
    "sentence piece": text_models.sentence_piece,
    "word piece": word_piece,
    "metaspace": metaspace,
}
EMOJI = "👩‍👩‍👧🙂🏳️‍🌈é日本 Ω"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Text, Tokenizer]]:
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name, make in TOKENIZERS.items():
        tokenizer = make()
        made[name] = (Text.load(text_models.save(folder / name, tokenizer, None)), tokenizer)
    return made


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text.load(text_models.chatml(tmp_path_factory.mktemp("chatml")))


def pieces_of(text: Text, ids: Sequence[int], stop: Sequence[str] = (), skip_special: bool = True) -> list[str]:
    stream = text.stream(stop, skip_special)
    return [*map(stream.push, ids), stream.finish()]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_decoded_text(texts: dict[str, tuple[Text, Tokenizer]], data: st.DataObject) -> None:
    """For any ids, of which some are no tokens: what `tokenizers` decodes at once, byte for byte."""
    text, tokenizer = texts[data.draw(st.sampled_from(sorted(texts)))]
    size = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 2), max_size=24))
    skip_special = data.draw(st.booleans())
    expected = tokenizer.decode(ids, skip_special_tokens=skip_special)
    assert "".join(pieces_of(text, ids, skip_special=skip_special)) == expected
    assert text.decode(ids, skip_special) == expected


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=24))
@example(content=EMOJI.encode())
@example(content=b"\xf0\x9f\x98")
@example(content=b"\xe2\x82\xe2\x82\xac\xff\xf0\x9f")
@example(content=b"\xed\xa0\x80\xc0\xaf\xf5")
def test_any_bytes(texts: dict[str, tuple[Text, Tokenizer]], content: bytes) -> None:
    """Characters come whole, and bytes that are none become U+FFFD as in a decoding at once."""
    for name, spelled in (("bytes", _byte_level_tokens), ("sentence piece", _byte_tokens)):
        text, tokenizer = texts[name]
        ids = [tokenizer.token_to_id(token) for token in spelled(content)]
        pieces = pieces_of(text, ids)
        assert "".join(pieces) == tokenizer.decode(ids)
        whole = content.decode("utf-8", "replace")
        if name == "sentence piece":
            whole = whole.removeprefix(" ")  # the space that encoding puts in front of a text
        if name == "bytes":
            assert "".join(pieces) == whole
        if "\ufffd" not in whole:
            assert "".join(pieces) == whole
            assert not any("\ufffd" in piece for piece in pieces), "a character was split"


def _byte_level_tokens(content: bytes) -> list[str]:
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    return [char_of[byte] for byte in content]


def _byte_tokens(content: bytes) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in content]


def test_a_character_comes_with_its_last_byte(texts: dict[str, tuple[Text, Tokenizer]]) -> None:
    text, tokenizer = texts["bytes"]
    ids = [tokenizer.token_to_id(token) for token in _byte_level_tokens("é🙂".encode())]
    assert pieces_of(text, ids) == ["", "é", "", "", "", "🙂", ""]


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop string, by the rule of StopScanner written the plain way."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab\n é", max_size=30),
    stops=st.lists(st.text("ab\n é", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
@example(text="aab", stops=["ab"], cuts=[1, 2])
@example(text="abc"[:2] + "a", stops=["aba", "b"], cuts=[1])
def test_stop_strings(text: str, stops: list[str], cuts: list[int]) -> None:
    """However the text is cut: the same outcome, and nothing let through that a stop string takes back."""
    expected, stopped = first_stop(text, stops)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    scanner = StopScanner(stops)
    passed = ""
    for start, end in pairwise(bounds):
        passed += scanner.push(text[start:end])
        assert expected.startswith(passed)
        held = text[len(passed) : end]
        if scanner.stopped is None and held:
            assert any(stop.startswith(held) and stop != held for stop in stops), "text was held back without need"
    passed += scanner.finish()
    assert (passed, scanner.stopped) == (expected, stopped)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_stop_strings_across_tokens(texts: dict[str, tuple[Text, Tokenizer]], data: st.DataObject) -> None:
    """Stop strings taken from the text itself, so that they lie across tokens and characters."""
    text, tokenizer = texts[data.draw(st.sampled_from(sorted(texts)))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=24))
    whole = tokenizer.decode(ids)
    spans = data.draw(st.lists(st.tuples(st.integers(0, len(whole)), st.integers(1, 6)), max_size=3))
    stops = [whole[start : start + length] for start, length in spans if whole[start : start + length]]
    stream = text.stream(stops)
    passed = "".join([*map(stream.push, ids), stream.finish()])
    assert (passed, stream.stopped) == first_stop(whole, stops)


def test_nothing_after_a_stop(smollm: Text) -> None:
    stream = smollm.stream(["END"])
    ids = smollm.encode("one END two END three")
    assert "".join(map(stream.push, ids)) + stream.finish() == "one "
    assert stream.stopped == "END"


def test_incomplete_bytes_may_complete_a_stop(texts: dict[str, tuple[Text, Tokenizer]]) -> None:
    text, tokenizer = texts["bytes"]
    ids = [tokenizer.token_to_id(token) for token in _byte_level_tokens(b"a\xf0\x9f")]
    stream = text.stream(["\ufffd"])
    assert "".join([*map(stream.push, ids), stream.finish()]) == "a"
    assert stream.stopped == "\ufffd"


def test_empty_stop_is_refused(smollm: Text) -> None:
    with pytest.raises(UsageError, match="empty"):
        smollm.stream(["x", ""])


def test_special_tokens_are_left_out_or_shown(smollm: Text) -> None:
    ids = smollm.render([{"role": "user", "content": "hi"}], add_generation_prompt=False).ids
    assert smollm.decode(ids) == "user\nhi\n"
    assert smollm.decode(ids, skip_special=False) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize("name", ["bytes", "byte level", "sentence piece"])
def test_bytes_of_tokens_make_up_the_text(texts: dict[str, tuple[Text, Tokenizer]], name: str) -> None:
    """For logprobs: the bytes of all tokens in a row are the text, but for a space that may be stripped in front."""
    text, _ = texts[name]
    ids = text.encode("The lazy dog,  " + EMOJI)
    joined = b"".join(map(text.token_bytes, ids)).decode()
    assert joined.removeprefix(" ") == "The lazy dog,  " + EMOJI
    assert [text.token_bytes(token).decode("utf-8", "replace") for token in ids] == [
        text.token_bytes(token).decode("utf-8", "replace") for token in ids
    ]


def test_added_letters_of_the_byte_alphabet(tmp_path: Path) -> None:
    """An added `ö` is the letter, though byte-level vocabularies write the byte 0xF6 with it."""
    tokenizer = text_models.byte_level()
    tokenizer.add_tokens([AddedToken("ö", normalized=False)])
    text = Text.load(text_models.save(tmp_path, tokenizer, None))
    assert text.encode("schön")[-2:-1] == [tokenizer.token_to_id("ö")]
    assert text.decode(text.encode("schön")) == "schön"


def test_unknown_decoders_are_refused(tmp_path: Path) -> None:
    tokenizer = text_models.byte_level()
    strip = decoders.Sequence([decoders.Strip(" ", 0, 1)])
    for decoder, name in ((decoders.CTC(), "CTC"), (decoders.BPEDecoder(), "BPEDecoder"), (strip, "Strip right")):
        tokenizer.decoder = decoder
        with pytest.raises(UnsupportedError, match=name):
            Text.load(text_models.save(tmp_path, tokenizer, None))
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "decoder": None}))
    with pytest.raises(UnsupportedError, match="no decoder"):
        Text.load(tmp_path)
