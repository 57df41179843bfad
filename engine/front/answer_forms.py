"""What a request says of the form of its answer, as a grammar for the worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from engine.front import fields
from engine.front.fields import FieldError, described
from engine.front.schemas import OF_RESPONSE_FORMAT

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_HEAD = "start: SPACE value\nSPACE: /[ \\t\\r\\n]{0,8}/\n"


@described(OF_RESPONSE_FORMAT)
def response_format(name: str, value: Any) -> str:
    """The grammar of OpenAI's `response_format`, flat or with the schema in a member of its own; "" for any text."""
    form = fields.mapping(name, value)
    match form.get("type", "text"):
        case "text":
            return ""
        case "json_object":
            return json_grammar(name)
        case "json_schema":
            where, holder = name, form
            if "json_schema" in form:
                where = f"{name}.json_schema"
                holder = fields.mapping(where, form["json_schema"])
            return json_grammar(f"{where}.schema", fields.mapping(f"{where}.schema", holder.get("schema")))
        case other:
            raise FieldError(f"{name}.type", f"{shown(other)} is not one of text, json_object, json_schema.")


@described({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]})
def ollama_format(name: str, value: Any) -> str:
    """The grammar of ollama's `format`: "json", a schema, or "" for any text."""
    if value == "":
        return ""
    return json_grammar(name) if value == "json" else json_grammar(name, fields.mapping(name, value))


def json_grammar(name: str, schema: Mapping[str, Any] = _ANY_OBJECT) -> str:
    """The grammar of JSON that a schema describes. FieldError about the member `name` where it makes no sense."""
    return checked(name, f"{_HEAD}value: %json {json.dumps(_with(schema))}\n")


def call_grammar(beginning: str, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """The grammar of a call from a tool's name on: the name, `beginning`, and arguments of its schema."""
    names = sorted(schemas)
    rules = [f"call{index}: {json.dumps(name + beginning)} arguments{index}" for index, name in enumerate(names)]
    arguments = [f"arguments{i}: %json {json.dumps(_object(schemas[name]))}" for i, name in enumerate(names)]
    starts = " | ".join(f"call{index}" for index in range(len(names)))
    return checked("tools", "\n".join([f"start: {starts}", *rules, *arguments, ""]))


def arguments_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of a call's arguments."""
    return checked("tools", f"start: %json {json.dumps(_object(schema))}\n")


def checked(name: str, grammar: str) -> str:
    """`grammar`, which can be compiled."""
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise FieldError(name, f"this JSON schema cannot be followed: {problem.splitlines()[0]}.")
    return grammar


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's schema, of which what grammars cannot follow is left to the model."""
    return _with(schema or _ANY_OBJECT, lenient=True)


def _with(schema: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
    """A schema whose JSON has some space between its parts, and not without end."""
    return {**schema, "x-guidance": {"whitespace_pattern": "[ \\n\\t]{0,12}", **options}}
