"""Items of reasoning: what of it a response shows, and how it comes back with the next request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.front.wire import fields

SUMMARIES = ("auto", "concise", "detailed")
"""What a request may ask for. A model here has one thing to show, its reasoning."""
_OURS = "freetoken:"  # what other servers have encrypted means nothing here


def carried(text: str) -> str:
    """The `encrypted_content` of an item, by which clients bring back reasoning that is stored nowhere.

    It hides nothing: whoever holds it was told the reasoning.
    """
    return f"{_OURS}{text}"


def reasoning_of(name: str, item: Mapping[str, Any]) -> str:
    """The reasoning in an item that is called `name` in a request. FieldError for parts that are no text."""
    content = item.get("encrypted_content")
    if isinstance(content, str) and content.startswith(_OURS):
        return fields.text(f"{name}.encrypted_content", content.removeprefix(_OURS))
    place = f"{name}.{'content' if item.get('content') else 'summary'}"
    parts = fields.mappings(place, item.get("content") or item.get("summary") or [])
    return "\n".join(fields.text(f"{place}[{index}].text", part.get("text")) for index, part in enumerate(parts))
