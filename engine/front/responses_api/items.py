"""The items of responses: what of a conversation they say, and how they are kept for later requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from reprlib import repr as shown
from typing import Any

from engine.front.forms.custom_tools import call_of
from engine.front.responses_api.reasoning import reasoning_of
from engine.front.wire import fields
from engine.front.wire.fields import FieldError

Item = Mapping[str, Any]
Items = tuple[Item, ...]
Messages = tuple[Mapping[str, Any], ...]

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "refusal")


def new_id(kind: str) -> str:
    """An id for an item of that type."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(24)}"


def given_items(value: Any) -> Items:
    """The items of `input`, which may be text. FieldError for an empty list, or anything else."""
    if isinstance(value, str):
        return ({"role": "user", "content": fields.text("input", value)},)
    if not isinstance(value, list) or not value:
        raise FieldError("input", "text or a list of at least one item is expected.")
    return fields.mappings("input", value)


def messages_of(items: Iterable[Item]) -> Messages:
    """Messages as any chat has them. Reasoning and calls belong to the assistant's message that they precede.

    FieldError for what cannot be read.
    """
    told: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        _add(told, f"input[{index}]", item)
    return tuple(told)


def kept(items: Iterable[Item], before: Items = ()) -> Items:
    """The items `before`, and behind them those that `messages_of` has read, as they are told later.

    They have what was read of them, the texts of messages as parts, and ids that no other of them has.
    """
    told, used = list(before), {item["id"] for item in before}
    for item in items:
        kind, identity = item.get("type", "message"), item.get("id")
        if not isinstance(identity, str) or not identity or identity in used:
            identity = new_id(kind)
        used.add(identity)
        told.append({"id": identity, "type": kind, **_read_of(kind, item), "status": "completed"})
    return tuple(told)


def _read_of(kind: str, item: Item) -> Item:
    match kind:
        case "message":
            more = {"type": "output_text", "annotations": []} if item["role"] == "assistant" else {"type": "input_text"}
            return {"role": item["role"], "content": [{**more, "text": text} for text in _texts("", item["content"])]}
        case "reasoning":
            place, part = ("content", "reasoning_text") if item.get("content") else ("summary", "summary_text")
            text = reasoning_of("", item)
            return {"summary": [], place: [{"type": part, "text": text}] if text else []}
        case "function_call" | "custom_tool_call":
            return {name: item[name] for name in ("call_id", "name", _WRITTEN[kind])}
    output = item["output"]
    if not isinstance(output, str):
        output = [{"type": "input_text", "text": text} for text in _texts("", output)]
    return {"call_id": item["call_id"], "output": output}


def _add(told: list[dict[str, Any]], name: str, item: Item) -> None:
    match item.get("type", "message"):
        case "message":
            _add_message(told, name, item)
        case "function_call":
            called = {key: fields.text(f"{name}.{key}", item.get(key)) for key in ("name", "arguments")}
            call = {"id": fields.text(f"{name}.call_id", item.get("call_id")), "type": "function", "function": called}
            _assistant(told, after_calls=True).setdefault("tool_calls", []).append(call)
        case "custom_tool_call":
            called = {key: fields.text(f"{name}.{key}", item.get(key)) for key in ("call_id", "name", "input")}
            _assistant(told, after_calls=True).setdefault("tool_calls", []).append(call_of(*called.values()))
        case "function_call_output" | "custom_tool_call_output":
            told.append(
                {
                    "role": "tool",
                    "tool_call_id": fields.text(f"{name}.call_id", item.get("call_id")),
                    "content": "\n".join(_texts(f"{name}.output", item.get("output"))),
                }
            )
        case "reasoning":
            if text := reasoning_of(name, item):
                told.append({"role": "assistant", "content": "", "reasoning_content": text})
        case other:
            raise FieldError(f"{name}.type", f"items of type {shown(other)} are not supported.", "Leave it out.")


def _add_message(told: list[dict[str, Any]], name: str, item: Item) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldError(f"{name}.role", f"{shown(role)} is not one of {', '.join(_ROLES)}.")
    text = "\n".join(_texts(f"{name}.content", item.get("content")))
    if _ROLES[role] == "assistant":
        message = _assistant(told, after_calls=False)
        message["content"] += text
    else:
        told.append({"role": _ROLES[role], "content": text})


def _assistant(told: list[dict[str, Any]], after_calls: bool) -> dict[str, Any]:
    """The assistant's message that an item belongs to: the last one, unless something else was said since."""
    last = told[-1] if told else None
    if last is None or last["role"] != "assistant" or (not after_calls and "tool_calls" in last):
        told.append({"role": "assistant", "content": ""})
    return told[-1]


def _texts(name: str, content: Any) -> list[str]:
    """Content, which is text or a list of parts, each of them text."""
    if isinstance(content, str):
        return [fields.text(name, content)]
    texts = []
    for index, part in enumerate(fields.mappings(name, content)):
        if part.get("type") not in _TEXTS:
            kind = shown(part.get("type"))
            raise FieldError(f"{name}[{index}].type", f"{kind} is not supported: this server reads text.", "Send text.")
        texts.append(fields.text(f"{name}[{index}].text", part.get("text", part.get("refusal"))))
    return texts
