"""Checkpoints whose vocabulary is tiktoken's file of ranks: what is handed on to whoever writes tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.names import TOKENIZER_NAME
from engine.files.untrusted import read_small_file

RANKS_NAME, CONFIG_NAME, TEMPLATE_NAME = "tiktoken.model", "tokenizer_config.json", "chat_template.jinja"
RANKS_KEY, CONFIG_KEY, SIZE_KEY = "tiktoken.ranks", "tiktoken.config", "tiktoken.size"
TEMPLATE_KEY = "tiktoken.template"

# Modules of published checkpoints that cut text into words, and how GGUF files call what they do.
MODULES: Mapping[str, str] = MappingProxyType({"tokenization_kimi": "kimi-k2", "tokenization_moonshot": "kimi-k2"})


def ranks_metadata(companions: Mapping[str, Path], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The files that say how text becomes tokens, where they do: by ranks, and with code that is known by name.

    None for other checkpoints, and for those that have a tokenizer.json.
    """
    if TOKENIZER_NAME in companions or not {RANKS_NAME, CONFIG_NAME} <= companions.keys():
        return None
    try:
        described = read_small_file(companions[CONFIG_NAME])
        text = described.decode()
    except (CorruptFileError, NotFoundError, UnicodeDecodeError):
        return None
    if not any(f"{module}." in text for module in MODULES):
        return None
    decoder = config.get("text_config")
    size = (decoder if isinstance(decoder, Mapping) else config).get("vocab_size")
    template = companions.get(TEMPLATE_NAME)
    return {
        RANKS_KEY: read_small_file(companions[RANKS_NAME]),
        CONFIG_KEY: described,
        SIZE_KEY: size if type(size) is int else 0,
        TEMPLATE_KEY: read_small_file(template).decode() if template is not None else None,
    }
