"""The tokenizer that a GGUF file describes, written as the files that Hugging Face checkpoints have.

A GGUF file has no tokenizer.json; its metadata hold the vocabulary, merges or scores, and the name of a
pre-tokenizer. `write_tokenizer` turns them into tokenizer.json, tokenizer_config.json and generation_config.json.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.text.decoding import byte_alphabet
from engine.text.folder import read_optional
from engine.text.pretokenizers import PRE_TOKENIZERS
from engine.text.tiktoken_file import as_gguf

_GENERATION = "generation_config.json"
_SPACE = "\u2581"  # what SentencePiece writes for a space
_RETAKE = "Fetch the file again, or take another one."
_T = TypeVar("_T")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as the GGUF format numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufVocabulary:
    """The tokenizer part of a GGUF file's metadata, checked."""

    model: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    named: Mapping[str, int]
    """`bos`, `eos`, `eot`, `eom`, `unknown`, `padding` -> id, as far as the file gives them."""
    pre: str
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool
    templates: Mapping[str, str]

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> GgufVocabulary:
        """Raises CorruptFileError for metadata that are no vocabulary."""
        tokens = _array(metadata, "tokens", str)
        if not tokens:
            raise CorruptFileError("The GGUF file has no vocabulary.", "Take a file that includes its tokenizer.")
        if len(set(tokens)) != len(tokens):
            twice = max(tokens, key=Counter(tokens).__getitem__)
            raise CorruptFileError(f"The GGUF vocabulary has the token {twice!r} twice.", _RETAKE)
        types = _array(metadata, "token_type", int) or (TokenType.NORMAL,) * len(tokens)
        scores = _array(metadata, "scores", float)
        for name, values in (("token types", types), ("scores", scores or tokens)):
            if len(values) != len(tokens):
                raise CorruptFileError(
                    f"The GGUF vocabulary has {len(tokens)} tokens but {len(values)} {name}.", _RETAKE
                )
        names = ("bos", "eos", "eot", "eom", "unknown", "padding")
        named = {name: token for name in names if (token := _scalar(metadata, f"{name}_token_id", int)) is not None}
        for name, token in named.items():
            if not 0 <= token < len(tokens):
                raise CorruptFileError(f"The GGUF file names token {token} as {name}, which it does not have.", _RETAKE)
        space_prefix = _scalar(metadata, "add_space_prefix", bool)
        return cls(
            model=_scalar(metadata, "model", str) or "none",
            tokens=tokens,
            types=types,
            named=named,
            pre=_scalar(metadata, "pre", str) or "default",
            merges=_array(metadata, "merges", str),
            scores=scores,
            add_bos=_scalar(metadata, "add_bos_token", bool),
            add_eos=bool(_scalar(metadata, "add_eos_token", bool)),
            add_space_prefix=True if space_prefix is None else space_prefix,
            templates=_templates(metadata),
        )


def write_tokenizer(metadata: Mapping[str, object], folder: Path) -> None:
    """Writes the tokenizer of a GGUF file into `folder`, which exists. A generation_config.json there is added to.

    `metadata` maps GGUF keys to plain Python values. Raises UnsupportedError naming a tokenizer model or
    pre-tokenizer that this release does not know, before anything is written.
    """
    vocabulary = GgufVocabulary.read(as_gguf(metadata))
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if vocabulary.model not in builders:
        raise UnsupportedError(
            f"The GGUF file's tokenizer is of the kind {vocabulary.model!r}; known are {', '.join(builders)}.",
            "Take the safetensors version of the model, whose tokenizer.json says everything.",
        )
    files = {
        "tokenizer.json": builders[vocabulary.model](vocabulary),
        "tokenizer_config.json": _tokenizer_config(vocabulary),
        _GENERATION: read_optional(folder / _GENERATION) | _generation_config(vocabulary),
    }
    for name, content in files.items():
        unfinished = folder / f"{name}.new"  # whoever is killed here leaves no half of a file that is read again
        unfinished.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        unfinished.replace(folder / name)


def _byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Byte-level BPE: the file gives the merges, and the cutting of words by name."""
    pre = PRE_TOKENIZERS.get(vocabulary.pre)
    if pre is None:
        raise UnsupportedError(
            f"The GGUF file's pre-tokenizer {vocabulary.pre!r} is not known.",
            "Take the safetensors version of the model, whose tokenizer.json says everything.",
        )
    added = _added_tokens(vocabulary)
    is_added = {entry["id"] for entry in added}
    byte_of = byte_alphabet()
    tokens = [
        token if index in is_added or byte_of.keys() >= set(token) else _in_byte_alphabet(token)
        for index, token in enumerate(vocabulary.tokens)
    ]
    model = _bpe(tokens, _merges(vocabulary.merges, set(tokens)), ignore_merges=pre.ignore_merges)
    return _tokenizer(
        added,
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(pre.steps)},
        post_processor=_post_processor(vocabulary, add_bos=pre.add_bos),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=model,
    )


def _sentence_piece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """SentencePiece BPE: the file gives scores, and the merges follow from them. Unknown characters become bytes."""
    unknown = vocabulary.named.get("unknown")
    model = _bpe(vocabulary.tokens, _merges_by_score(vocabulary), fuse_unk=True, byte_fallback=True)
    if unknown is not None:
        model["unk_token"] = vocabulary.tokens[unknown]
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.add_space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer(
        _added_tokens(vocabulary),
        normalizer=None,
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "first" if vocabulary.add_space_prefix else "never",
            "split": False,
        },
        post_processor=_post_processor(vocabulary, add_bos=True),
        decoder={"type": "Sequence", "decoders": steps},
        model=model,
    )


def _merges_by_score(vocabulary: GgufVocabulary) -> list[list[str]]:
    """Merges that do what SentencePiece does: of all neighbours that form a token, join those of the best score.

    A token can be formed from each pair of tokens that spell it; pairs of equal score keep a fixed order, longer
    left part first. Tokens that are no ordinary text are never formed, or `<s>` could be written with letters.
    """
    if not vocabulary.scores:
        raise CorruptFileError("The GGUF vocabulary has no scores.", _RETAKE)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    ranked: list[tuple[float, int, int, list[str]]] = []
    for token, index in ids.items():
        if vocabulary.types[index] != TokenType.NORMAL:
            continue
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        ranked += [
            (-vocabulary.scores[index], -len(left), index, [left, right])
            for left, right in pairs
            if left in ids and right in ids
        ]
    return [pair for *_, pair in sorted(ranked, key=lambda entry: entry[:3])]


def _merges(lines: Sequence[str], tokens: Collection[str]) -> list[list[str]]:
    """The file's merges, whose parts and results must all be tokens."""
    merges = [_merge(line) for line in lines]
    for left, right in merges:
        absent = next((part for part in (left, right, left + right) if part not in tokens), None)
        if absent is not None:
            raise CorruptFileError(
                f"A merge of the GGUF vocabulary needs the token {absent!r}, which is not there.", _RETAKE
            )
    return merges


def _merge(line: str) -> list[str]:
    """A merge as the file writes it: two tokens and a space between; the first may begin with a space."""
    cut = line.find(" ", 1)
    if cut < 0 or cut == len(line) - 1:
        raise CorruptFileError(f"The GGUF vocabulary has the merge {line!r}, which is no pair.", _RETAKE)
    return [line[:cut], line[cut + 1 :]]


def _in_byte_alphabet(token: str) -> str:
    """A token in the characters that stand for bytes; some files write ordinary tokens in plain text."""
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    return "".join(char_of[byte] for byte in token.encode("utf-8", "replace"))


def _bpe(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    *,
    ignore_merges: bool = False,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": list(merges),
    }


def _tokenizer(added: list[dict[str, Any]], **steps: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **steps}


def _added_tokens(vocabulary: GgufVocabulary) -> list[dict[str, Any]]:
    """Control tokens and those that begin or end texts are special; user-defined ones are matched whole as well."""
    named = {token for name, token in vocabulary.named.items() if name not in ("unknown", "padding")}
    special = {TokenType.CONTROL, TokenType.UNKNOWN}
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in special or index in named,
        }
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in special or kind == TokenType.USER_DEFINED or index in named
    ]


def _post_processor(vocabulary: GgufVocabulary, add_bos: bool) -> dict[str, Any] | None:
    """What puts start and end tokens around a text; `add_bos` is what holds where the file is silent."""
    add_bos = add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    before = [vocabulary.named["bos"]] if add_bos and "bos" in vocabulary.named else []
    after = [vocabulary.named["eos"]] if vocabulary.add_eos and "eos" in vocabulary.named else []
    if not before and not after:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        pieces = [{"SpecialToken": {"id": vocabulary.tokens[token], "type_id": kind}} for token in (*before, *after)]
        return [*pieces[: len(before)], {"Sequence": {"id": sequence, "type_id": kind}}, *pieces[len(before) :]]

    names = {token: vocabulary.tokens[token] for token in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]} for token, name in names.items()},
    }


def _tokenizer_config(vocabulary: GgufVocabulary) -> dict[str, Any]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {
        key: vocabulary.tokens[vocabulary.named[name]] for name, key in names.items() if name in vocabulary.named
    }
    if list(vocabulary.templates) == ["default"]:
        config["chat_template"] = vocabulary.templates["default"]
    elif vocabulary.templates:
        config["chat_template"] = [
            {"name": name, "template": template} for name, template in vocabulary.templates.items()
        ]
    return config


def _generation_config(vocabulary: GgufVocabulary) -> dict[str, Any]:
    ends = [vocabulary.named[name] for name in ("eos", "eot", "eom") if name in vocabulary.named]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    for name, key in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
        if name in vocabulary.named:
            config[key] = vocabulary.named[name]
    return config


def _templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """Chat templates by name: `tokenizer.chat_template` and, beside it, `tokenizer.chat_template.NAME`."""
    prefix = "tokenizer.chat_template"
    found = {}
    for key, value in metadata.items():
        if key == prefix or key.startswith(f"{prefix}."):
            if not isinstance(value, str):
                raise CorruptFileError(f"The GGUF key {key} is not text.", _RETAKE)
            found[key[len(prefix) + 1 :] or "default"] = value
    return found


def _scalar(metadata: Mapping[str, object], name: str, kind: type[_T]) -> _T | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorruptFileError(f"The GGUF key tokenizer.ggml.{name} is {value!r}, not a {kind.__name__}.", _RETAKE)
    return value


def _array(metadata: Mapping[str, object], name: str, kind: type[_T]) -> tuple[_T, ...]:
    """The values of an array; none where the file lacks it."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return ()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise CorruptFileError(f"The GGUF key tokenizer.ggml.{name} is no array.", _RETAKE)
    if not all(isinstance(value, kind) for value in values):
        raise CorruptFileError(f"The GGUF key tokenizer.ggml.{name} holds other than {kind.__name__}s.", _RETAKE)
    return tuple(values)
