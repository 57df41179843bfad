"""Messages as clients send them, checked and made into what a template may see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.base.errors import UsageError
from engine.text.guard import Fence, Guard, scrub
from engine.text.template import Traits

_DEEPEST = 64
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_MODEL_TEXT = frozenset({"content", *_REASONING_NAMES})
"""Fields of an assistant's message that hold what a model wrote."""


class Conversation:
    """Turns messages, tools and template variables from outside into plain data without forged control tokens.

    Strings lose characters that no prompt may hold. The content and the reasoning of an assistant's message are what
    a model wrote in an earlier turn: there the non-special control tokens (`<think>`, `<tool_call>`) stay control
    tokens, since templates cut the text at them; special tokens never do, and neither does anything in the arguments
    of a tool call.
    """

    def __init__(self, guard: Guard, fence: Fence, traits: Traits) -> None:
        self._guard = guard
        self._fence = fence
        self._traits = traits

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Checked copies of `messages`. Raises UsageError naming the message that is wrong."""
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise UsageError("The messages are not a list.", "Send a list of objects with a role and a content.")
        if not messages:
            raise UsageError("The conversation has no messages.", "Send at least one message.")
        return [self._message(message, f"Message {number}") for number, message in enumerate(messages, 1)]

    def data(self, value: Any, name: str) -> Any:
        """A copy of other JSON data from outside, `name` for complaints."""
        return self._plain(value, name, 0)

    def _message(self, message: Any, name: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise UsageError(f"{name} is not an object.", "A message has a role and a content.")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise UsageError(f"{name} has no role.", "Give system, user, assistant or tool.")
        written = role == "assistant"
        plain: dict[str, Any] = {}
        for key, value in message.items():
            if value is None:  # templates handle an absent key better than None, and transformers drops it too
                continue
            if key == "content":
                plain[key] = self._content(value, name, written)
            elif key == "role":
                plain[key] = scrub(role)
            elif key == "tool_calls":
                plain[key] = self._tool_calls(value, name)
            elif written and key in _MODEL_TEXT and isinstance(value, str):
                plain[key] = self._model_text(value)
            else:
                plain[str(key)] = self._plain(value, name, 0)
        return _with_reasoning_names(plain)

    def _content(self, value: Any, name: str, written: bool) -> str | list[dict[str, Any]]:
        if isinstance(value, str):
            return self._model_text(value) if written else self._outside(value)
        if not isinstance(value, Sequence) or isinstance(value, bytes):
            raise UsageError(f"The content of {name.lower()} is neither text nor a list of parts.", "Send a string.")
        texts = []
        for part in value:
            kind = part.get("type", "text") if isinstance(part, Mapping) else None
            text = part if isinstance(part, str) else part.get("text") if kind == "text" else None
            if not isinstance(text, str):
                what = f"of type {kind}" if isinstance(kind, str) and kind != "text" else "without text"
                raise UsageError(f"{name} has a part {what}; this model reads text only.", "Send text parts.")
            texts.append(self._model_text(text) if written else self._outside(text))
        if self._traits.parts:
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)

    def _tool_calls(self, value: Any, name: str) -> Any:
        calls = self._plain(value, f"The tool calls of {name.lower()}", 0)
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise UsageError(f"The tool calls of {name.lower()} are not a list of objects.", "Send a list.")
        for call in calls:
            function = call.get("function", call)
            if not isinstance(function, dict):
                raise UsageError(f"A tool call of {name.lower()} has no function.", "Give its name and arguments.")
            arguments = function.get("arguments")
            if isinstance(arguments, str) and not self._traits.argument_text:
                function["arguments"] = _object_or_text(arguments)
        return calls

    def _plain(self, value: Any, name: str, depth: int) -> Any:
        """`value` as plain JSON data, every string and key of it from outside."""
        if depth > _DEEPEST:
            raise UsageError(f"{name} is nested more than {_DEEPEST} deep.", "Send flatter data.")
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._outside(value)
        if isinstance(value, Mapping):
            return {self._outside(str(key)): self._plain(item, name, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item, name, depth + 1) for item in value]
        raise UsageError(f"{name} holds data of type {type(value).__name__}, not JSON.", "Send JSON data.")

    def _outside(self, text: str) -> str:
        return self._fence.put(scrub(text))

    def _model_text(self, text: str) -> str:
        return self._guard.seal_soft(self._outside(text))


def _with_reasoning_names(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with its reasoning under the names that templates read, as transformers does it."""
    reasoning = next((message[name] for name in _REASONING_NAMES if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _object_or_text(text: str) -> Any:
    """The object that `text` is the JSON of; other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
