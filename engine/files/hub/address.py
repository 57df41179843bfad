"""What names a checkpoint on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class HubRepo:
    """A checkpoint on the Hugging Face Hub: `owner/name` at a revision (a branch, a tag or a commit).

    `file` is the one GGUF file to take (of a split one its first part); None takes the safetensors of the repository.
    """

    repo: str
    revision: str = "main"
    file: str | None = None


def is_hub_id(text: str) -> bool:
    """Whether `text` is `owner/name` as the Hugging Face Hub allows it."""
    return bool(_HUB_ID.fullmatch(text)) and "--" not in text and ".." not in text
