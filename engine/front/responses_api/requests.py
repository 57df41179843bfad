"""Requests for responses, made into what any chat is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from engine.base.sampling import PARAMETERS
from engine.front.asked import ChatAsked, values_of
from engine.front.forms.answer_forms import response_format
from engine.front.forms.custom_tools import call_of
from engine.front.forms.tools import GivenTool, Offer, ToolUse, allowed_tools, read_tools, tool_use, with_names_of_tools
from engine.front.responses_api.reasoning import SUMMARIES, reasoning_of
from engine.front.thinking import THOUGHT_BUDGETS, chosen_budget, effort, variables_of_effort
from engine.front.wire import fields
from engine.front.wire.fields import Field, FieldError, described

Messages = tuple[Mapping[str, Any], ...]


@described({"type": "array", "items": {"type": "string"}})
def _included(name: str, value: Any) -> tuple[Any, ...]:
    """What a response is to hold beside the usual; what this server does not know of it changes nothing."""
    if not isinstance(value, list):
        raise FieldError(name, "a list is expected.")
    fields.check_count(name, value)
    return tuple(value)


_PARAMETERS = ("temperature", "top_p", "top_k", "min_p", "seed")
RESPONSE = {
    "model": Field(fields.model, required=True),
    "stream": Field(fields.flag, False),
    "store": Field(fields.flag, True),
    "max_output_tokens": Field(fields.whole(1, 2**31 - 1)),
    "parallel_tool_calls": Field(fields.flag, True),
    "include": Field(_included, ()),
    "reasoning": Field(fields.mapping, {}),
    "text": Field(fields.mapping, {}),
    "tools": Field(fields.mappings, ()),
    "tool_choice": Field(lambda _name, value: value, "auto"),
    **THOUGHT_BUDGETS,
    "instructions": Field(fields.text, ""),
    "previous_response_id": Field(fields.text),
    "conversation": Field(fields.only()),
    "prompt": Field(fields.only()),
    **{name: Field(fields.within(PARAMETERS[name].range)) for name in _PARAMETERS},
}
_TOOLS = {"function": ("name", "description", "parameters", "strict"), "custom": ("name", "description", "format")}
_REASONING = "reasoning.encrypted_content"
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "refusal")


@dataclass(frozen=True)
class ResponseAsked(ChatAsked):
    """A request for a response.

    `conversation` is what a response to this one goes on from, without the instructions, which are not kept. A response
    that `summarises` shows its reasoning as a summary, and one that `carries` it has clients bring it back.
    """

    conversation: Messages = ()
    store: bool = True
    previous: str | None = None
    summarises: bool = False
    carries: bool = False
    echoed: Mapping[str, Any] | None = None


def previous_id(body: Mapping[str, Any]) -> str | None:
    """The id of the response that a request goes on from."""
    found: str | None = RESPONSE["previous_response_id"].value("previous_response_id", body)
    return found


def read_response(body: Mapping[str, Any], before: Messages) -> ResponseAsked:
    """The request in `body`, which goes on from the messages `before`. FieldError for what cannot be served."""
    values = {name: field.value(name, body) for name, field in RESPONSE.items()}
    wished = values["text"].get("format")
    form = response_format("text.format", {} if wished is None else wished)
    conversation = (*before, *_messages(body.get("input")))
    instructions = ({"role": "system", "content": values["instructions"]},) if values["instructions"] else ()
    offer, other_tools = _tools(values["tools"])
    known = (*RESPONSE, "input")
    not_included = (f"include[{index}]" for index, each in enumerate(values["include"]) if each != _REASONING)
    return ResponseAsked(
        model=values["model"],
        stream=values["stream"],
        include_usage=True,
        choices=1,
        max_tokens=values["max_output_tokens"],
        stops=(),
        ignore_eos=False,
        logprobs=-1,
        values=values_of(**{name: values[name] for name in _PARAMETERS}),
        messages=with_names_of_tools((*instructions, *conversation)),
        template_values=_thinking(values["reasoning"]),
        tools=_tool_use(offer, values),
        grammar=form.grammar,
        budget=chosen_budget(values),
        conversation=conversation,
        store=values["store"],
        summarises=_summary(values["reasoning"]) is not None,
        carries=_REASONING in values["include"] or not values["store"],
        previous=values["previous_response_id"],
        echoed=_echoed(values, body),
        ignored=(
            *(fields.shortened(name) for name in body if name not in known),
            *not_included,
            *form.partly,
            *other_tools,
        ),
    )


def _messages(value: Any) -> Messages:
    """Messages of text or a list of items. Reasoning and calls belong to the assistant's message that they precede."""
    if isinstance(value, str):
        return ({"role": "user", "content": fields.text("input", value)},)
    if not isinstance(value, list) or not value:
        raise FieldError("input", "text or a list of at least one item is expected.")
    fields.check_count("input", value)
    told: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        _add(told, f"input[{index}]", fields.mapping(f"input[{index}]", item))
    if not told:
        raise FieldError("input", "none of the items says anything.")
    return tuple(told)


def _add(told: list[dict[str, Any]], name: str, item: Mapping[str, Any]) -> None:
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
            output, where = item.get("output"), f"{name}.output"
            content = fields.text(where, output) if isinstance(output, str) else _joined(where, output)
            told.append(
                {
                    "role": "tool",
                    "tool_call_id": fields.text(f"{name}.call_id", item.get("call_id")),
                    "content": content,
                }
            )
        case "reasoning":
            if text := reasoning_of(name, item):
                told.append({"role": "assistant", "content": "", "reasoning_content": text})
        case other:
            raise FieldError(f"{name}.type", f"items of type {shown(other)} are not supported.", "Leave it out.")


def _add_message(told: list[dict[str, Any]], name: str, item: Mapping[str, Any]) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldError(f"{name}.role", f"{shown(role)} is not one of {', '.join(_ROLES)}.")
    content = item.get("content")
    where = f"{name}.content"
    text = fields.text(where, content) if isinstance(content, str) else _joined(where, content)
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


def _joined(name: str, parts: Any) -> str:
    texts = []
    for index, part in enumerate(fields.mappings(name, parts)):
        if part.get("type") not in _TEXTS:
            kind = shown(part.get("type"))
            raise FieldError(f"{name}[{index}].type", f"{kind} is not supported: this server reads text.", "Send text.")
        texts.append(fields.text(f"{name}[{index}].text", part.get("text", part.get("refusal"))))
    return "\n".join(texts)


def _tools(given: Sequence[Mapping[str, Any]]) -> tuple[Offer, tuple[str, ...]]:
    """Tools as any chat has them; and those that change nothing, such as those that only the service could run."""
    told: list[GivenTool] = []
    ignored: list[str] = []
    for index, tool in enumerate(given):
        kind, place = tool.get("type"), f"tools[{index}]"
        if isinstance(kind, str) and kind in _TOOLS:
            told.append(GivenTool(kind, {key: tool.get(key) for key in _TOOLS[kind]}, place))
        else:
            ignored.append(place)
    return read_tools("tools", told), tuple(ignored)


def _tool_use(offer: Offer, values: Mapping[str, Any]) -> ToolUse:
    choice, parallel = values["tool_choice"], values["parallel_tool_calls"]
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return tool_use(offer, choice, parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return tool_use(offer, allowed_tools("tool_choice", choice), parallel)
    if isinstance(choice, dict) and choice.get("type") in (*_TOOLS,):
        return tool_use(offer, {"name": fields.text("tool_choice.name", choice.get("name"))}, parallel)
    raise FieldError("tool_choice", f"none, auto, required or a tool is expected, not {shown(choice)}.")


def _thinking(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    chosen = reasoning.get("effort")
    return variables_of_effort(None if chosen is None else effort("reasoning.effort", chosen))


def _summary(reasoning: Mapping[str, Any]) -> str | None:
    """The summary of the reasoning that is asked for, by its name or by the one that it had once."""
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) is not None:
            chosen: str = fields.one_of(*SUMMARIES)(f"reasoning.{name}", reasoning[name])
            return chosen
    return None


def _echoed(values: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a response repeats of its request."""
    return {
        "instructions": values["instructions"] or None,
        "max_output_tokens": values["max_output_tokens"],
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": values["parallel_tool_calls"],
        "previous_response_id": values["previous_response_id"],
        "reasoning": {"effort": values["reasoning"].get("effort"), "summary": _summary(values["reasoning"])},
        "store": values["store"],
        "temperature": values["temperature"],
        "text": {"format": values["text"].get("format") or {"type": "text"}},
        "tool_choice": values["tool_choice"],
        "tools": list(values["tools"]),
        "top_p": values["top_p"],
        "truncation": "disabled",
    }
