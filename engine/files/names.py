"""Names of the files that a checkpoint and a converted model have beside their weights."""

from __future__ import annotations

import re

from engine.files.manifest import DENSE_NAME, MANIFEST_NAME

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
_FIXED = frozenset({JOURNAL_NAME, DENSE_NAME, MANIFEST_NAME, CONFIG_NAME, *COMPANION_FILES})
_NUMBERED = re.compile(r"experts-\d+-\d+\.bank|chat_template\.[A-Za-z0-9_.-]+\.jinja", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a name that somebody else chose is one file's, here and anywhere: no separators, no surprises."""
    return bool(_PLAIN.fullmatch(name))


def is_of_conversion(name: str) -> bool:
    """Whether a conversion writes files of that name."""
    return name in _FIXED or bool(_NUMBERED.fullmatch(name))
