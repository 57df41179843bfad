"""The tools of a chat request: what may be called, what must be, and the ids of calls."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shown
from typing import Any, Literal, NamedTuple

from engine.front.forms.custom_tools import as_function
from engine.front.forms.text_grammars import TextGrammar, text_grammar
from engine.front.wire import fields
from engine.front.wire.fields import FieldError, described
from engine.front.wire.schemas import OF_TOOL_CHOICE, OF_TOOLS
from engine.text.formats.pieces import Tools

MOST_TOOLS = 1024
LONGEST_TOOL = 2**18
LONGEST_TOOLS = 2**22
_NAME = re.compile(r"[\w.:/-]{1,128}")
_CHOICES = ("none", "auto", "required")
_LETTERS = string.ascii_letters + string.digits

Choice = Literal["none", "auto", "required"] | str
"""Whether a tool is called; any other text is the name of the one that must be."""


class GivenTool(NamedTuple):
    """A tool as a request has it: of what kind it is, its members, and the place of these."""

    kind: str
    members: Any
    place: str


@dataclass(frozen=True)
class Offer:
    """The tools of a request: each as a function, which templates take.

    The `custom` ones are those whose input is text of any form; `grammars` has, by their names, those that want it of
    a certain form. `strict` has the names of those whose arguments are to follow their schemas, and where that is said.
    """

    functions: tuple[Mapping[str, Any], ...] = ()
    custom: frozenset[str] = frozenset()
    grammars: Mapping[str, TextGrammar] = field(default_factory=dict)
    strict: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Allowed:
    """The names of the only tools that may be called, and whether one of them has to be."""

    names: frozenset[str]
    required: bool


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and what is wished of them."""

    offer: Offer = field(default_factory=Offer)
    choice: str = "auto"
    named: bool = False  # `choice` is the name of a tool
    parallel: bool = True

    @property
    def schemas(self) -> Tools | None:
        """The parameters of every tool by its name; None where none may be called."""
        tools = self.offer.functions
        if not tools or (self.choice == "none" and not self.named):
            return None
        return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}

    @property
    def several(self) -> bool:
        """Whether other calls may follow the first: a tool that is asked for by name is called once."""
        return self.parallel and not self.named

    @property
    def forced(self) -> str | None:
        """The tool that has to be called, "" for any of several; None where none has to."""
        if self.named:
            return self.choice
        tools = self.offer.functions
        if self.choice != "required" or not tools:
            return None
        return str(tools[0]["function"]["name"]) if len(tools) == 1 else ""


@described(OF_TOOLS)
def tools(name: str, value: Any) -> Offer:
    """A list of tools of two types, function and custom."""
    if not isinstance(value, list):
        raise FieldError(name, "a list of tools is expected.")
    return read_tools(name, [_given(f"{name}[{index}]", tool) for index, tool in enumerate(value)])


def _given(name: str, value: Any) -> GivenTool:
    tool = fields.mapping(name, value)
    kind = tool.get("type", "function")
    if kind not in ("function", "custom"):
        raise FieldError(f"{name}.type", f"{shown(kind)} is not supported.", "Offer tools of type function or custom.")
    return GivenTool(kind, tool.get(kind), f"{name}.{kind}")


def read_tools(name: str, given: Sequence[GivenTool]) -> Offer:
    """The tools that the member `name` gives, checked."""
    if len(given) > MOST_TOOLS:
        raise FieldError(name, f"{len(given)} tools are more than the {MOST_TOOLS} allowed.")
    grammars: dict[str, TextGrammar] = {}
    read = tuple(_tool(tool, grammars) for tool in given)
    names = [tool["function"]["name"] for tool in read]
    _check_lengths(name, given, read)
    twice = next((each for each in names if names.count(each) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise FieldError(name, f"two tools are called {shown(twice)}.")
    for grammar in grammars.values():
        grammar.check()
    custom = frozenset(called for called, tool in zip(names, given, strict=True) if tool.kind == "custom")
    strict = {
        called: f"{tool.place}.strict"
        for called, tool in zip(names, given, strict=True)
        if tool.kind == "function" and tool.members.get("strict") is True
    }
    return Offer(read, custom, grammars, strict)


def _check_lengths(name: str, given: Sequence[GivenTool], read: Sequence[Mapping[str, Any]]) -> None:
    lengths = [len(json.dumps(tool["function"])) for tool in read]
    for tool, length in zip(given, lengths, strict=True):
        if length > LONGEST_TOOL:
            problem = f"{length} characters of JSON are more than the {LONGEST_TOOL} allowed."
            raise FieldError(tool.place, problem, "Shorten its description or its schema.")
    if sum(lengths) > LONGEST_TOOLS:
        raise FieldError(name, f"{sum(lengths)} characters of JSON are more than the {LONGEST_TOOLS} allowed.")


def _tool(given: GivenTool, grammars: dict[str, TextGrammar]) -> Mapping[str, Any]:
    """A tool as a function. The grammar of a custom one's text is added to `grammars`."""
    where = given.place
    function = fields.mapping(where, given.members)
    called = function.get("name")
    if not isinstance(called, str) or not _NAME.fullmatch(called):
        raise FieldError(f"{where}.name", "a name of at most 128 letters, digits and _ - . : / is expected.")
    if function.get("description") is not None and not isinstance(function["description"], str):
        raise FieldError(f"{where}.description", "text is expected.")
    if given.kind == "custom":
        grammar = text_grammar(f"{where}.format", function.get("format"))
        if grammar is not None:
            grammars[called] = grammar
        return as_function(function, grammar)
    if function.get("parameters") is not None:
        fields.mapping(f"{where}.parameters", function["parameters"])
    # `strict` is said to grammars, and nothing for a model to read.
    told = {key: item for key, item in function.items() if item is not None and key != "strict"}
    return {"type": "function", "function": told}


@described(OF_TOOL_CHOICE)
def tool_choice(name: str, value: Any) -> str | Mapping[str, Any] | Allowed:
    """One of three words, or which tool, or which of them may be called."""
    if isinstance(value, str) and value in _CHOICES:
        return value
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return allowed_tools(f"{name}.allowed_tools", value.get("allowed_tools"))
    if isinstance(value, dict) and value.get("type") in ("function", "custom"):
        where = f"{name}.{value['type']}"
        tool = fields.mapping(where, value.get(value["type"]))
        if isinstance(tool.get("name"), str):
            return tool
        raise FieldError(f"{where}.name", "the name of a tool is expected.")
    raise FieldError(name, f"{', '.join(_CHOICES)} or a function is expected, not {shown(value)}.")


def allowed_tools(name: str, value: Any) -> Allowed:
    """Which tools may be called. In responses a tool's name stands beside its type."""
    allowed = fields.mapping(name, value)
    mode = fields.one_of("auto", "required")(f"{name}.mode", allowed.get("mode"))
    names = []
    for index, tool in enumerate(fields.mappings(f"{name}.tools", allowed.get("tools"))):
        where = f"{name}.tools[{index}]"
        holder = fields.mapping(where, tool.get("function", tool.get("custom", tool)))
        names.append(fields.text(f"{where}.name", holder.get("name")))
    return Allowed(frozenset(names), mode == "required")


def tool_use(offer: Offer, choice: str | Mapping[str, Any] | Allowed, parallel: bool) -> ToolUse:
    """What a request wishes, checked: FieldError for a tool that is not offered."""
    offered = offer.functions
    if isinstance(choice, Allowed):
        unknown = choice.names - {tool["function"]["name"] for tool in offered}
        if unknown:
            raise FieldError("tool_choice", f"no tool is called {shown(min(unknown))}.")
        some = tuple(tool for tool in offered if tool["function"]["name"] in choice.names)
        return tool_use(replace(offer, functions=some), "required" if choice.required else "auto", parallel)
    if isinstance(choice, str):
        if choice == "required" and not offered:
            raise FieldError("tool_choice", "a call is required, but there are no tools.")
        return ToolUse(offer, choice, False, parallel)
    called = choice["name"]
    if all(tool["function"]["name"] != called for tool in offered):
        raise FieldError("tool_choice", f"no tool is called {shown(called)}.")
    return ToolUse(offer, called, True, parallel)


def call_id(own: str, style: str) -> str:
    """The id of a call: the model's own, or a fresh one of the kind that its template takes."""
    if style == "nine":
        return own if re.fullmatch("[a-zA-Z0-9]{9}", own) else _fresh(9)
    return own or f"call_{_fresh(24)}"


def _fresh(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def with_names_of_tools(messages: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """`messages` whose tool results carry the name of the tool that was called, which some templates read."""
    names: dict[str, str] = {}
    named: list[Mapping[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(call.get("id"), str) and isinstance(function.get("name"), str):
                names[call["id"]] = function["name"]
        known = names.get(message["tool_call_id"]) if isinstance(message.get("tool_call_id"), str) else None
        named.append({**message, "name": known} if known and "name" not in message else message)
    return tuple(named)
