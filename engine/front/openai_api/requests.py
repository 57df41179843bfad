"""The OpenAI requests this server understands, as tables of their members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from engine.base.sampling import PARAMETERS
from engine.front.asked import Asked, ChatAsked, given
from engine.front.forms.answer_forms import AnswerForm, response_format
from engine.front.forms.custom_tools import call_of
from engine.front.forms.tools import Offer, tool_choice, tool_use, tools, with_names_of_tools
from engine.front.thinking import THOUGHT_BUDGETS, chosen_budget, effort, variables_of_effort
from engine.front.wire import fields
from engine.front.wire.fields import Field, FieldError, described, read_fields, shortened
from engine.front.wire.schemas import OF_MESSAGES, OF_TOKEN

MOST_CHOICES = 16
MOST_PROMPTS = 2048  # of one completion request; and so many answers, however they are asked for

_SHARED = {
    "model": Field(fields.model, required=True),
    "stream": Field(fields.flag, False),
    "stream_options": Field(fields.mapping, {}),
    "n": Field(fields.whole(1, MOST_CHOICES), 1),
    "max_tokens": Field(fields.whole(1, 2**31 - 1)),
    "stop": Field(fields.stops, ()),
    **{name: Field(fields.within(parameter.range)) for name, parameter in PARAMETERS.items()},
    "logit_bias": Field(fields.logit_bias, {}),
    "ignore_eos": Field(fields.flag, False),
}


@described({"type": "object"})
def _template_values(name: str, value: Any) -> dict[str, Any]:
    """Variables for the chat template, but those that a request has fields for."""
    values = fields.mapping(name, value)
    for taken in ("messages", "tools"):
        if taken in values:
            raise FieldError(
                f"{name}.{taken}", "this is no variable for the template.", "Give it as a field of its own."
            )
    return values


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@described(OF_MESSAGES)
def _messages(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    """Messages with a known role. What else they hold is checked where they are rendered."""
    if not isinstance(value, list) or not value:
        raise FieldError(name, "a list of at least one message is expected.")
    fields.check_count(name, value)
    return tuple(_message(f"{name}[{index}]", message) for index, message in enumerate(value))


def _message(name: str, message: Any) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise FieldError(name, "an object is expected.")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldError(f"{name}.role", f"{shown(role)} is not one of {', '.join(_ROLES)}.")
    content = message.get("content")
    # An assistant's turn that only called tools has none.
    if content is None and role != "assistant":
        raise FieldError(f"{name}.content", "text is expected.")
    if isinstance(content, str):
        fields.text(f"{name}.content", content)
    elif isinstance(content, list):
        fields.check_count(f"{name}.content", content)
        for index, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                fields.text(f"{name}.content[{index}].text", part["text"])
    return {**message, **_calls(f"{name}.tool_calls", message.get("tool_calls")), "role": _ROLES[role]}


def _calls(name: str, calls: Any) -> Mapping[str, Any]:
    """A message's calls, those of custom tools as functions. The rest of them is checked where they are rendered."""
    if not isinstance(calls, list):
        return {}
    told = []
    for index, call in enumerate(calls):
        if isinstance(call, dict) and call.get("type") == "custom":
            where = f"{name}[{index}]"
            custom = fields.mapping(f"{where}.custom", call.get("custom"))
            called, given = (fields.text(f"{where}.custom.{key}", custom.get(key)) for key in ("name", "input"))
            told.append(call_of(fields.text(f"{where}.id", call.get("id")), called, given))
        else:
            told.append(call)
    return {"tool_calls": told}


@described(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "minItems": 1, "maxItems": MOST_PROMPTS, "items": {"type": "string"}},
            {"type": "array", "minItems": 1, "items": OF_TOKEN},
            {"type": "array", "minItems": 1, "maxItems": MOST_PROMPTS, "items": {"type": "array", "items": OF_TOKEN}},
        ]
    }
)
def _prompts(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A string, a list of strings, a list of token ids, or a list of those."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if len(value) > MOST_PROMPTS and not _are_ids(value):
            raise FieldError(name, f"{len(value)} prompts are more than the {MOST_PROMPTS} allowed.")
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if _are_ids(value):
            return (tuple(value),)
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return tuple(tuple(item) for item in value)
    raise FieldError(name, "a string, a list of token ids, or a list of either is expected.")


def _are_ids(value: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value)


CHAT = {
    **_SHARED,
    "messages": Field(_messages, required=True),
    "max_completion_tokens": Field(fields.whole(1, 2**31 - 1)),
    "logprobs": Field(fields.flag, False),
    "top_logprobs": Field(fields.whole(0, fields.MOST_LOGPROBS)),
    "chat_template_kwargs": Field(_template_values, {}),
    "response_format": Field(response_format, AnswerForm()),
    "tools": Field(tools, Offer()),
    "tool_choice": Field(tool_choice, "auto"),
    "parallel_tool_calls": Field(fields.flag, True),
    "reasoning_effort": Field(effort),
    **THOUGHT_BUDGETS,
    "reasoning_format": Field(fields.one_of("auto", "none"), "auto"),
    "functions": Field(fields.only([])),
    "modalities": Field(fields.only(["text"])),
    "audio": Field(fields.only()),
}
COMPLETION = {
    **_SHARED,
    "prompt": Field(_prompts, required=True),
    "echo": Field(fields.flag, False),
    "logprobs": Field(fields.whole(0, fields.MOST_LOGPROBS)),
    "best_of": Field(fields.only(1)),
    "suffix": Field(fields.only("")),
}
# Hints to a hosted service; nothing here depends on them.
IGNORED = frozenset({
    "user", "store", "metadata", "service_tier", "function_call", "prediction",
    "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "moderation", "verbosity", "web_search_options",
})  # fmt: skip


@dataclass(frozen=True)
class CompletionAsked(Asked):
    """A completion of each prompt, which is text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool


def read_chat(body: Mapping[str, Any]) -> ChatAsked:
    """The request in `body`. FieldError for what cannot be served."""
    values = read_fields(body, CHAT, IGNORED)
    if values["top_logprobs"] is not None and not values["logprobs"]:
        raise FieldError("top_logprobs", "logprobs must be true as well.")
    logprobs = (values["top_logprobs"] or 0) if values["logprobs"] else -1
    most = given(values["max_completion_tokens"], values["max_tokens"])
    return ChatAsked(
        **_shared(values, logprobs, most),
        messages=with_names_of_tools(values["messages"]),
        template_values={**variables_of_effort(values["reasoning_effort"]), **values["chat_template_kwargs"]},
        grammar=values["response_format"].grammar,
        reads_reasoning=values["reasoning_format"] == "auto",
        budget=chosen_budget(values),
        ignored=values["response_format"].partly,
        tools=tool_use(values["tools"], values["tool_choice"], values["parallel_tool_calls"]),
    )


def read_completion(body: Mapping[str, Any]) -> CompletionAsked:
    """The request in `body`. FieldError for what cannot be served."""
    values = read_fields(body, COMPLETION, IGNORED)
    if values["echo"] and values["logprobs"] is not None:
        raise FieldError("echo", "log probabilities of the prompt are not supported.", "Leave out echo or logprobs.")
    logprobs = -1 if values["logprobs"] is None else values["logprobs"]
    answers = len(values["prompt"]) * values["n"]
    if answers > MOST_PROMPTS:
        raise FieldError("n", f"{answers} answers are more than the {MOST_PROMPTS} allowed at once.")
    most = given(values["max_tokens"], 16)  # the OpenAI interface's default for this kind
    return CompletionAsked(**_shared(values, logprobs, most), prompts=values["prompt"], echo=values["echo"])


def _shared(values: Mapping[str, Any], logprobs: int, max_tokens: int | None) -> dict[str, Any]:
    options = values["stream_options"]
    unknown = options.keys() - {"include_usage", "include_obfuscation"}
    if unknown:
        raise FieldError(f"stream_options.{shortened(min(unknown))}", "this server knows no such parameter.")
    if options and not values["stream"]:
        raise FieldError("stream_options", "stream must be true as well.")
    return {
        "model": values["model"],
        "stream": values["stream"],
        "include_usage": fields.flag("stream_options.include_usage", options.get("include_usage") or False),
        "choices": values["n"],
        "max_tokens": max_tokens,
        "stops": values["stop"],
        "ignore_eos": values["ignore_eos"],
        "logprobs": logprobs,
        "values": values,
    }
