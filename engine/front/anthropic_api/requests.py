"""Requests of Anthropic's interface, made into what any chat is. Members that change nothing here are let through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from engine.base.sampling import PARAMETERS
from engine.front.asked import ChatAsked, ThoughtBudget, values_of
from engine.front.forms.answer_forms import AnswerForm, response_format
from engine.front.forms.tools import GivenTool, Offer, ToolUse, read_tools, tool_use, with_names_of_tools
from engine.front.thinking import thinking_variables, thought_budget
from engine.front.wire import fields
from engine.front.wire.dialects import UnheldThreadError
from engine.front.wire.fields import Field, FieldError

_PARAMETERS = ("temperature", "top_p", "top_k", "min_p", "seed")
MESSAGES = {
    "model": Field(fields.model, required=True),
    "max_tokens": Field(fields.whole(1, 2**31 - 1)),
    "stream": Field(fields.flag, False),
    "stop_sequences": Field(fields.stops, ()),
    "thinking": Field(fields.mapping, {}),
    "tool_choice": Field(fields.mapping, {}),
    "tools": Field(fields.mappings, ()),
    "output_config": Field(fields.mapping, {}),
    "output_format": Field(fields.mapping, {}),
    "compaction": Field(fields.only()),
    **{name: Field(fields.within(PARAMETERS[name].range)) for name in _PARAMETERS},
}


def read_messages(body: Mapping[str, Any], counting: bool = False) -> ChatAsked:
    """The request in `body`, of which perhaps only the tokens are counted. FieldError for what cannot be served."""
    values = {name: field.value(name, body) for name, field in MESSAGES.items()}
    if values["max_tokens"] is None and not counting:
        raise FieldError("max_tokens", "a number of tokens is expected.")
    if body.get("thread") is not None:
        raise UnheldThreadError("thread", "this server holds no conversations.", "Send all messages of it.")
    messages = _conversation(body.get("system"), body.get("messages"))
    prefill = ""
    if messages[-1]["role"] == "assistant":
        prefill = _prefill(messages[-1])
        messages = messages[:-1]
    offer, server_tools = _tools(values["tools"])
    form = _form(values, prefill)
    known = (*MESSAGES, "messages", "system")
    return ChatAsked(
        model=values["model"],
        stream=values["stream"],
        include_usage=True,
        choices=1,
        max_tokens=values["max_tokens"],
        stops=values["stop_sequences"],
        ignore_eos=False,
        logprobs=-1,
        values=values_of(**{name: values[name] for name in _PARAMETERS}),
        messages=with_names_of_tools(tuple(messages)),
        template_values=_thinking(values["thinking"], values["output_config"]),
        tools=_tool_use(offer, values["tool_choice"]),
        budget=_budget(values["thinking"]),
        grammar=form.grammar,
        prefill=prefill,
        ignored=(*(fields.shortened(name) for name in body if name not in known), *form.partly, *server_tools),
    )


def _conversation(system: Any, messages: Any) -> list[Mapping[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages", "a list of at least one message is expected.")
    fields.check_count("messages", messages)
    told: list[Mapping[str, Any]] = []
    if system is not None:
        text = "\n".join(_texts("system", system))
        told += [{"role": "system", "content": text}] if text else []
    for index, message in enumerate(messages):
        told += _message(f"messages[{index}]", message)
    if not told:
        raise FieldError("messages", "none of the messages says anything.")
    return told


def _message(name: str, value: Any) -> list[Mapping[str, Any]]:
    """One of their messages as one or more of ours: what tools gave back stands by itself."""
    message = fields.mapping(name, value)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise FieldError(f"{name}.role", f"{shown(role)} is not one of user, assistant, system.")
    if isinstance(content, str):
        return [{"role": role, "content": fields.text(f"{name}.content", content)}]
    if not isinstance(content, list):
        raise FieldError(f"{name}.content", "text or a list of blocks is expected.")
    blocks = [(f"{name}.content[{index}]", block) for index, block in enumerate(content)]
    if role == "assistant":
        return [_assistant(blocks)]
    told: list[Mapping[str, Any]] = []
    texts: list[str] = []
    for where, block in blocks:
        if fields.mapping(where, block).get("type") == "tool_result":
            told.append(_tool_result(where, block))
        else:
            texts += _texts(where, [block])
    return [*told, {"role": role, "content": "\n".join(texts)}] if texts or not told else told


def _assistant(blocks: list[tuple[str, Any]]) -> Mapping[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Mapping[str, Any]] = []
    for where, block in blocks:
        match fields.mapping(where, block).get("type"):
            case "thinking":
                thoughts.append(fields.text(f"{where}.thinking", block.get("thinking")))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = json.dumps(fields.mapping(f"{where}.input", block.get("input")), ensure_ascii=False)
                function = {"name": fields.text(f"{where}.name", block.get("name")), "arguments": arguments}
                calls.append(
                    {"id": fields.text(f"{where}.id", block.get("id")), "type": "function", "function": function}
                )
            case _:
                texts += _texts(where, [block])
    return {
        "role": "assistant",
        "content": "".join(texts),
        **({"reasoning_content": "\n".join(thoughts)} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _tool_result(name: str, block: Mapping[str, Any]) -> Mapping[str, Any]:
    content = block.get("content")
    text = "" if content is None else "\n".join(_texts(f"{name}.content", content))
    if block.get("is_error"):
        text = f"Error: {text}"
    return {
        "role": "tool",
        "tool_call_id": fields.text(f"{name}.tool_use_id", block.get("tool_use_id")),
        "content": text,
    }


def _texts(name: str, value: Any) -> list[str]:
    """The texts of a string or a list of blocks; a block of another kind is refused by its name."""
    if isinstance(value, str):
        return [fields.text(name, value)]
    if not isinstance(value, list):
        raise FieldError(name, "text or a list of blocks is expected.")
    texts = []
    for index, each in enumerate(value):
        where = f"{name}[{index}]" if len(value) > 1 else name
        block = fields.mapping(where, each)
        source = block.get("source")
        if block.get("type") == "text":
            texts.append(fields.text(f"{where}.text", block.get("text")))
        elif block.get("type") == "document" and isinstance(source, dict) and source.get("type") == "text":
            texts.append(fields.text(f"{where}.source.data", source.get("data")))
        else:
            kind = shown(block.get("type"))
            raise FieldError(f"{where}.type", f"{kind} is not supported: this server reads text.", "Send text blocks.")
    return texts


def _prefill(message: Mapping[str, Any]) -> str:
    """The words with which the answer begins."""
    if message.get("tool_calls"):
        raise FieldError("messages", "the last message calls a tool.", "Send what the tool gave back after it.")
    return str(message["content"]).rstrip()


def _form(values: Mapping[str, Any], prefill: str) -> AnswerForm:
    """The form that an answer is to have: a member of `output_config`, which once stood by itself."""
    nested = values["output_config"].get("format")
    name, form = ("output_format", values["output_format"]) if nested is None else ("output_config.format", nested)
    read = response_format(name, form)
    if read.grammar and prefill:
        raise FieldError(name, "the last message begins the answer.", "Leave out one of both.")
    return read


def _tools(given_tools: tuple[Mapping[str, Any], ...]) -> tuple[Offer, tuple[str, ...]]:
    """Tools as functions; and the kinds of those that only the service itself could run."""
    told: list[GivenTool] = []
    others = []
    for index, tool in enumerate(given_tools):
        place = f"tools[{index}]"
        if tool.get("type") not in (None, "custom"):
            others.append(place)
            continue
        schema = tool.get("input_schema")
        if schema is not None:
            fields.mapping(f"{place}.input_schema", schema)
        members = {key: tool.get(key) for key in ("name", "description", "strict")}
        told.append(GivenTool("function", {**members, "parameters": schema}, place))
    return read_tools("tools", told), tuple(others)


def _tool_use(offer: Offer, choice: Mapping[str, Any]) -> ToolUse:
    parallel = not choice.get("disable_parallel_tool_use", False)
    match choice.get("type", "auto"):
        case "auto" | "none" as word:
            return tool_use(offer, word, parallel)
        case "any":
            return tool_use(offer, "required", parallel)
        case "tool":
            return tool_use(offer, {"name": fields.text("tool_choice.name", choice.get("name"))}, parallel)
        case other:
            raise FieldError("tool_choice.type", f"{shown(other)} is not one of auto, any, tool, none.")


def _thinking(thinking: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """The variables by which templates are told whether to think, and how hard."""
    effort = output.get("effort")
    chosen = effort if isinstance(effort, str) else None
    match thinking.get("type"):
        case None:
            return {} if chosen is None else {"reasoning_effort": chosen}
        case "enabled" | "adaptive":
            return thinking_variables(True, chosen)
        case "disabled":
            return thinking_variables(False)
        case other:
            raise FieldError("thinking.type", f"{shown(other)} is not one of enabled, adaptive, disabled.")


def _budget(thinking: Mapping[str, Any]) -> ThoughtBudget | None:
    """Any number of tokens: that the service wants 1024, and fewer than `max_tokens`, is no reason to refuse here."""
    given = thinking.get("budget_tokens")
    return None if given is None else thought_budget("thinking.budget_tokens", given)
