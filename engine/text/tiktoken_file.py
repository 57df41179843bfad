"""A vocabulary that a checkpoint keeps as tiktoken's file of ranks, as the metadata of a GGUF file describe one.

The file has a line a token: its bytes in base 64 and its rank, which is its id. Merges follow from ranks: tiktoken
joins the neighbours whose join has the lowest rank, whichever two tokens they are.
What cuts text into words is code in such checkpoints; it is known by the name of that code.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from engine.base.errors import CorruptFileError
from engine.files.sources.tiktoken import CONFIG_KEY, MODULES, RANKS_KEY, SIZE_KEY, TEMPLATE_KEY
from engine.text.decoding import byte_alphabet

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_REMEDY = "Fetch the checkpoint's tiktoken.model and tokenizer_config.json again."
_NAMED: Mapping[str, str] = MappingProxyType({"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"})


def as_gguf(metadata: Mapping[str, object]) -> Mapping[str, object]:
    """`metadata` themselves, or what they say as a GGUF file would if they hold a file of ranks.

    Raises CorruptFileError for a file that is none.
    """
    if RANKS_KEY not in metadata:
        return metadata
    raw, config, size = (metadata[key] for key in (RANKS_KEY, CONFIG_KEY, SIZE_KEY))
    assert isinstance(raw, bytes), "a file of ranks is handed on as it is"
    assert isinstance(config, bytes), "a tokenizer config is handed on as it is"
    assert isinstance(size, int), "a vocabulary has a size"
    ranks, described = read_ranks(raw), json.loads(config)
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    tokens = ["".join(char_of[byte] for byte in token) for token in sorted(ranks, key=ranks.__getitem__)]
    merges = [" ".join("".join(char_of[byte] for byte in part) for part in pair) for pair in merges_of(ranks)]
    added = {int(index): entry for index, entry in described.get("added_tokens_decoder", {}).items()}
    types = [_NORMAL] * len(tokens)
    for index in range(len(tokens), max(size, *(index + 1 for index in added))):
        entry = added.get(index, {"content": f"<|reserved_token_{index}|>", "special": True})
        tokens.append(entry["content"])
        types.append(_CONTROL if entry.get("special") else _USER_DEFINED)
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": MODULES[module_of(described)],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
    for name, short in _NAMED.items():
        content = _content(described.get(name))
        if content in tokens:
            found[f"tokenizer.ggml.{short}_token_id"] = tokens.index(content)
    template = metadata.get(TEMPLATE_KEY) or described.get("chat_template")
    return {**found, "tokenizer.chat_template": template} if isinstance(template, str) else found


def module_of(config: Mapping[str, Any]) -> str:
    """The module whose code cuts text into words, as tokenizer_config.json names it; "" where it names none."""
    named = config.get("auto_map")
    classes = named.get("AutoTokenizer") if isinstance(named, Mapping) else None
    first = classes[0] if isinstance(classes, list) and classes else classes
    return first.split("--")[-1].split(".")[0] if isinstance(first, str) else ""


def read_ranks(raw: bytes) -> dict[bytes, int]:
    """The rank of every token. Raises CorruptFileError unless ranks count from zero and every byte has one."""
    ranks: dict[bytes, int] = {}
    try:
        for line in raw.split(b"\n"):
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error):
        raise CorruptFileError("tiktoken.model has a line that is no token and its rank.", _REMEDY) from None
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise CorruptFileError("tiktoken.model lacks ranks or bytes.", _REMEDY)
    return ranks


def merges_of(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair of tokens that join to a token, in order of its rank; of one token the shortest left first."""
    for token in sorted(ranks, key=ranks.__getitem__):
        for cut in range(1, len(token)):
            if token[:cut] in ranks and token[cut:] in ranks:
                yield token[:cut], token[cut:]


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, Mapping) else token
