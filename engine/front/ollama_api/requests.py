"""Requests of ollama's interface, made into what any chat or completion is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from engine.base.errors import UsageError
from engine.base.sampling import PARAMETERS
from engine.base.units import parse_duration
from engine.front.asked import Asked, ChatAsked, values_of
from engine.front.forms.answer_forms import AnswerForm, ollama_format
from engine.front.forms.tools import Offer, ToolUse, tool_use, tools, with_names_of_tools
from engine.front.thinking import thinking_variables
from engine.front.wire import fields
from engine.front.wire.fields import Field, FieldError, described

_LATEST = ":latest"
# Their name of an option, and ours. Options of how a model is loaded change nothing here.
_OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
    **{name: name for name in ("frequency_penalty", "presence_penalty")},
    "repeat_penalty": "repetition_penalty",
}


@described({"anyOf": [{"type": "number"}, {"type": "string"}]})
def read_keep_alive(name: str, value: Any) -> float:
    """Seconds, infinity for what is negative or endless to people: a number of seconds, or text such as 5m."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value <= 10**12 else float("inf")
    try:
        return float("inf") if str(value).startswith("-") else parse_duration(value)
    except (UsageError, TypeError, AttributeError):
        raise FieldError(name, f"a duration such as 5m, or seconds, is expected, not {shown(value)}.") from None


@described({"type": "string", "minLength": 1})
def read_model(name: str, value: Any) -> str:
    """A model's name; the tag that theirs have by default means nothing here."""
    return fields.model(name, value).removesuffix(_LATEST)


@described({"anyOf": [{"type": "boolean"}, {"enum": ["low", "medium", "high", "max"]}]})
def _think(_name: str, value: Any) -> Any:
    """Whether to think, or how hard; it is read with the rest."""
    return value


_SHARED = {
    "model": Field(read_model, required=True),
    "stream": Field(fields.flag, True),
    "options": Field(fields.mapping, {}),
    "keep_alive": Field(read_keep_alive),
    "think": Field(_think),
    "format": Field(ollama_format, AnswerForm()),
    "logprobs": Field(fields.flag, False),
    "top_logprobs": Field(fields.whole(0, fields.MOST_LOGPROBS), 0),
}
CHAT = {**_SHARED, "messages": Field(fields.mappings, ()), "tools": Field(tools, Offer())}
GENERATE = {
    **_SHARED,
    "prompt": Field(fields.text, ""),
    "system": Field(fields.text, ""),
    "raw": Field(fields.flag, False),
    "images": Field(fields.only([])),
    "suffix": Field(fields.only("")),
    "template": Field(fields.only("")),
}
NAMED = {"model": Field(read_model), "name": Field(read_model)}


@dataclass(frozen=True)
class Keeping:
    """Which model a request is about, and how long it stays loaded after it (None: as it is)."""

    model: str
    keep_alive: float | None


@dataclass(frozen=True)
class RawAsked(Asked):
    """A completion of text as it is."""

    prompt: str


def read_chat(body: Mapping[str, Any]) -> tuple[Keeping, ChatAsked | None]:
    """A chat; without messages only the model is meant. FieldError for what cannot be served."""
    values = _read(body, CHAT)
    keeping = Keeping(values["model"], values["keep_alive"])
    messages = [_message(f"messages[{index}]", message) for index, message in enumerate(values["messages"])]
    if not messages:
        return keeping, None
    return keeping, _chat(values, messages, tool_use(values["tools"], "auto", True))


def read_generate(body: Mapping[str, Any]) -> tuple[Keeping, ChatAsked | RawAsked | None]:
    """A prompt, as the template writes it or raw; without one only the model is meant."""
    values = _read(body, GENERATE)
    keeping = Keeping(values["model"], values["keep_alive"])
    if not values["prompt"]:
        return keeping, None
    if values["raw"]:
        return keeping, RawAsked(**_asked(values), prompt=values["prompt"])
    system = [{"role": "system", "content": values["system"]}] if values["system"] else []
    return keeping, _chat(values, [*system, {"role": "user", "content": values["prompt"]}], ToolUse())


def read_name(body: Mapping[str, Any]) -> str:
    """The model that a request names, under either of two names."""
    values = {name: field.value(name, body) for name, field in NAMED.items()}
    found = values["model"] or values["name"]
    if not found:
        raise FieldError("model", "a model's name is expected.", "GET /api/tags lists them.")
    return str(found)


def _read(body: Mapping[str, Any], table: Mapping[str, Field]) -> dict[str, Any]:
    """Members that nobody knows are let through, as ollama does."""
    return {name: field.value(name, body) for name, field in table.items()}


def _chat(values: Mapping[str, Any], messages: list[Mapping[str, Any]], use: ToolUse) -> ChatAsked:
    return ChatAsked(
        **_asked(values),
        messages=with_names_of_tools(tuple(messages)),
        template_values=_thinking(values["think"]),
        grammar=values["format"].grammar,
        tools=use,
    )


def _asked(values: Mapping[str, Any]) -> dict[str, Any]:
    options = values["options"]
    sampling = {}
    for theirs, ours in _OPTIONS.items():
        if options.get(theirs) is not None:
            sampling[ours] = fields.within(PARAMETERS[ours].range)(f"options.{theirs}", options[theirs])
    most = options.get("num_predict")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
        raise FieldError("options.num_predict", f"a whole number is expected, not {shown(most)}.")
    return {
        "model": values["model"],
        "stream": values["stream"],
        "include_usage": True,
        "choices": 1,
        "max_tokens": most if most and most > 0 else None,
        "stops": fields.stops("options.stop", options.get("stop") or []),
        "ignore_eos": False,
        "logprobs": values["top_logprobs"] if values["logprobs"] else -1,
        "values": values_of(**sampling),
    }


def _message(name: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    role = message.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise FieldError(f"{name}.role", f"{shown(role)} is not one of system, user, assistant, tool.")
    if message.get("images"):
        raise FieldError(f"{name}.images", "this server reads text.", "Leave them out.")
    told: dict[str, Any] = {"role": role, "content": fields.text(f"{name}.content", message.get("content") or "")}
    if message.get("thinking"):
        told["reasoning_content"] = fields.text(f"{name}.thinking", message["thinking"])
    if message.get("tool_name"):
        told["name"] = fields.text(f"{name}.tool_name", message["tool_name"])
    if message.get("tool_call_id"):
        told["tool_call_id"] = fields.text(f"{name}.tool_call_id", message["tool_call_id"])
    if message.get("tool_calls"):
        calls = fields.mappings(f"{name}.tool_calls", message["tool_calls"])
        told["tool_calls"] = [_call(f"{name}.tool_calls[{index}]", call, index) for index, call in enumerate(calls)]
    return told


def _call(name: str, call: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    function = fields.mapping(f"{name}.function", call.get("function"))
    arguments = fields.mapping(f"{name}.function.arguments", function.get("arguments") or {})
    called = fields.text(f"{name}.function.name", function.get("name"))
    return {
        "id": call.get("id") or f"call_{index}",
        "type": "function",
        "function": {"name": called, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _thinking(think: Any) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, str) and think in ("low", "medium", "high", "max"):
        return thinking_variables(True, think)
    if not isinstance(think, bool):
        raise FieldError("think", f"true, false, low, medium, high or max is expected, not {shown(think)}.")
    return thinking_variables(think)
