"""Names of the files that a checkpoint and a converted model have beside their weights."""

from __future__ import annotations

import re

CONFIG_NAME = "config.json"
GENERATION_NAME = "generation_config.json"
TOKENIZER_NAME = "tokenizer.json"
JOURNAL_NAME = "journal"

# vocabularies of other programs, which say nothing to this one
OTHER_TOKENIZERS = ("tokenizer.model", "tiktoken.model", "vocab.json")

# what a model folder may hold beside its config and weights and is worth keeping
COMPANION_FILES = (
    GENERATION_NAME,
    TOKENIZER_NAME,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    *OTHER_TOKENIZERS,
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
)

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a name that somebody else chose is one file's, here and anywhere: no separators, no surprises."""
    return bool(_PLAIN.fullmatch(name))
