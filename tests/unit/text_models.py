"""Tiny checkpoints for the tests of text: tokenizers made here, with the templates of tests/data/text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEMPLATES = Path(__file__).parents[1] / "data" / "text"
CORPUS = [
    "The quick brown fox jumps over the lazy dog. 0 1 2 3 4 5 6 7 8 9 10 11 12 2024",
    "def add(first, second):\n    return first + second\n\n\nprint(add(1, 2))",
    "You are a helpful assistant. What is the weather in Paris today? I'll check, it's raining; they've said so.",
    "Größe, naïve café, Ελληνικά, русский текст, 日本語, 한국어, العربية, 👩‍👩‍👧 🙂",
    '{"name": "weather", "arguments": {"city": "Paris", "days": 3}, "type": "function", "description": "x"}',
] * 4
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def special(*texts: str) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def soft(*texts: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(text, special=False, **{"normalized": False, **flags}) for text in texts]


def byte_level(size: int = 500, *, words: str | None = None, nfc: bool = False, **flags: Any) -> Tokenizer:
    """A byte-level BPE tokenizer trained on the corpus."""
    tokenizer = Tokenizer(models.BPE(**flags))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if words is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    return tokenizer


def sentence_piece(size: int = 600, *, legacy: bool = False) -> Tokenizer:
    """A tokenizer in the manner of SentencePiece: spaces as U+2581, bytes for what it does not know.

    `legacy` puts a space before every stretch of text between special tokens, not only before the first.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator([text[:60] for text in CORPUS[:3]], trainers.BpeTrainer(vocab_size=size))
    state = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *state["vocab"]]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(merge) for merge in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return tokenizer


def save(folder: Path, tokenizer: Tokenizer, template: str | None, **config: Any) -> Path:
    """Writes a checkpoint's text files into `folder`; `template` is the name of one of the test templates."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if template is not None:
        config["chat_template"] = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def chatml(folder: Path) -> Path:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return save(folder, tokenizer, "chatml", bos_token="<|im_start|>", eos_token="<|im_end|>")


def headers(folder: Path) -> Path:
    tokenizer = byte_level(words=WORDS, ignore_merges=True)
    names = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag")
    tokenizer.add_special_tokens(special(*(f"<|{name}|>" for name in names)))
    return save(folder, tokenizer, "headers", bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def brackets(folder: Path) -> Path:
    tokenizer = sentence_piece()
    names = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
    tokenizer.add_special_tokens(
        special(*(f"[{slash}{name}]" for name in names for slash in ("", "/")), "[TOOL_CALLS]")
    )
    return save(folder, tokenizer, "brackets", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def brackets_legacy(folder: Path) -> Path:
    tokenizer = sentence_piece(legacy=True)
    return save(folder, tokenizer, "brackets", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def thinking(folder: Path) -> Path:
    tokenizer = byte_level(words=WORDS, nfc=True)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    names = ("think", "tool_call", "tool_response")
    tokenizer.add_tokens(soft(*(f"<{slash}{name}>" for name in names for slash in ("", "/"))))
    return save(folder, tokenizer, "thinking", eos_token="<|im_end|>", pad_token="<|endoftext|>")


def spelled(folder: Path) -> Path:
    """Tokens that swallow the space after them, put together by the template."""
    tokenizer = sentence_piece(legacy=True)
    names = ("system", "user", "assistant", "tool", "end", "endoftext")
    tokens = [AddedToken(f"<|{name}|>", special=True, normalized=False, rstrip=True) for name in names]
    tokenizer.add_special_tokens(tokens)
    return save(folder, tokenizer, "spelled", bos_token="<s>", eos_token="<|endoftext|>", unk_token="<unk>")


def spaces(folder: Path) -> Path:
    """Runs of spaces and single letters as added tokens, matched after normalisation; as in gpt-neox and deepseek."""
    tokenizer = byte_level(nfc=True)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(soft(*(" " * count for count in range(24, 1, -1)), normalized=True))
    tokenizer.add_tokens(soft("ö", "<table>", "</table>"))
    return save(folder, tokenizer, "chatml", eos_token="<|im_end|>")


def bars(folder: Path) -> Path:
    """Names between full-width bars, those of tool use not special; `<think>` is ordinary text here."""
    tokenizer = byte_level(words=WORDS)
    names = ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant")
    tokenizer.add_special_tokens(special(*(f"<｜{name}｜>" for name in names)))
    tools = ("tool▁calls", "tool▁call", "tool▁outputs", "tool▁output")
    tokenizer.add_tokens(
        soft(*(f"<｜{name}▁{edge}｜>" for name in tools for edge in ("begin", "end")), "<｜tool▁sep｜>")
    )
    ends = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
    return save(folder, tokenizer, "bars", **ends)


def channels(folder: Path) -> Path:
    tokenizer = byte_level(words=WORDS)
    names = ("start", "end", "message", "channel", "return", "call", "endoftext")
    tokenizer.add_special_tokens(special(*(f"<|{name}|>" for name in names)))
    return save(folder, tokenizer, "channels", eos_token="<|return|>")


def plain_markers(folder: Path) -> Path:
    """The template of `thinking` with a tokenizer to which its markers are ordinary text."""
    tokenizer = byte_level(words=WORDS)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return save(folder, tokenizer, "thinking", eos_token="<|im_end|>")


def plain_brackets(folder: Path) -> Path:
    """Turns between brackets that are ordinary text, as in the first mixtral."""
    return save(folder, sentence_piece(), "brackets", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


MODELS: dict[str, Callable[[Path], Path]] = {
    make.__name__: make
    for make in (chatml, headers, brackets, brackets_legacy, thinking, spelled, spaces, bars, channels, plain_markers)
}
