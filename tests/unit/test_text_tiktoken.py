"""A file of ranks becomes a tokenizer.json that cuts text as tiktoken's own rule does: the lowest rank first."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from tokenizers import Tokenizer

from engine.base.errors import CorruptFileError
from engine.files.sources.tiktoken import ranks_metadata
from engine.text.gguf_tokenizer import write_tokenizer
from engine.text.tiktoken_file import read_ranks

ALPHABET = "aAbBcéß漢字 ÅЖж1234.,!\n\t' sS"
# Written out as Kimi's code has it, for another engine of regular expressions.
WORDS = regex.compile(
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    regex.VERSION1,
)


def random_text(source: random.Random, length: int) -> str:
    return "".join(source.choice(ALPHABET) for _ in range(length))


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Bytes, and 400 merges of what random texts have next to each other."""
    source = random.Random(0)
    found = {bytes([byte]): byte for byte in range(256)}
    while len(found) < 656:
        word = source.choice(WORDS.findall(random_text(source, 30))).encode()
        parts = encode_word(word, found)
        if len(parts) > 1:
            place = source.randrange(len(parts) - 1)
            found.setdefault(parts[place] + parts[place + 1], len(found))
    return found


def encode_word(word: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """tiktoken's rule, one scalar step at a time."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        joins = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not joins:
            return parts
        _, place = min(joins)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def write_checkpoint(folder: Path, ranks: dict[bytes, int]) -> dict[str, Path]:
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {
            str(len(ranks)): {"content": "[BOS]", "special": True},
            str(len(ranks) + 2): {"content": "<|im_end|>", "special": True},
            str(len(ranks) + 3): {"content": "<|tool|>", "special": False},
        },
        "bos_token": "[BOS]",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return {name: folder / name for name in ("tiktoken.model", "tokenizer_config.json")}


def test_random_text_becomes_the_same_tokens(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    metadata = ranks_metadata(write_checkpoint(tmp_path, ranks), {"vocab_size": len(ranks) + 8})
    assert metadata is not None
    write_tokenizer(metadata, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    source = random.Random(1)
    merged = 0
    for _ in range(2000):
        text = random_text(source, source.randrange(1, 60))
        expected = [
            ranks[part]
            for word in WORDS.findall(text)
            for part in ([word.encode()] if word.encode() in ranks else encode_word(word.encode(), ranks))
        ]
        merged += sum(token > 255 for token in expected)
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text
        assert tokenizer.decode(expected) == text
    assert merged > 1000
    names = {len(ranks): "[BOS]", len(ranks) + 1: f"<|reserved_token_{len(ranks) + 1}|>", len(ranks) + 3: "<|tool|>"}
    assert {index: tokenizer.id_to_token(index) for index in names} == names
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [len(ranks) + 2]
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (written["bos_token"], written["eos_token"]) == ("[BOS]", "<|im_end|>")
    assert written["chat_template"] == "{{ messages }}"


def test_code_that_is_not_known_cuts_no_words(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    companions = write_checkpoint(tmp_path, ranks)
    companions["tokenizer_config.json"].write_text('{"auto_map": {"AutoTokenizer": ["other.Tokenizer", null]}}')
    assert ranks_metadata(companions, {"vocab_size": 700}) is None


@pytest.mark.parametrize("raw", [b"AA== 0\nAQ== 2\n", b"!! 0\n", b"AA==\n", b"AA== 0\n"])
def test_a_file_without_all_bytes_and_ranks_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"tiktoken\.model"):
        read_ranks(raw)
