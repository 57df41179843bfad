"""Values of arguments as JSON, those that a model wrote as bare text by what the tool's schema expects."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Set
from typing import Any

from engine.text.formats.pieces import Call, MalformedCallError, Tools

_WORDS = {"null": ("null", "None"), "boolean": ("true", "false", "True", "False")}
_BRACKETS = {"array": ("[", "("), "object": ("{",)}
_NUMBER = re.compile(r"[-+.\d][-+.\w]*")


def to_call(name: Any, arguments: Any, identity: str = "") -> Call:
    """A call of the object `arguments`, or of JSON text of one. MalformedCallError for anything else."""
    if isinstance(arguments, str):
        arguments = read_json(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping | None):
        raise MalformedCallError
    return Call(name, written(arguments or {}), identity)


def written(value: Any) -> str:
    """`value` as JSON that any reader takes: no halves of surrogate pairs; MalformedCallError for NaN and infinity."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise MalformedCallError from None
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_json(text: str) -> Any:
    """The JSON value that `text` is, its strings perhaps with raw line ends. MalformedCallError for other text."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise MalformedCallError from None


def typed(text: str, types: Set[str]) -> Any:
    """The value that bare `text` is where a schema allows `types`: what JSON or Python reads there, if anything, else
    text. Where a string is allowed too, only what is of one of the other types is not text.
    """
    if "string" in types and not may_be_other(text, types):
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
            written(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return value if "string" not in types or types & _types_of(value) else text
    return text


def may_be_other(text: str, types: Set[str]) -> bool:
    """Whether what begins with `text` can be a value of those among `types` that are no strings."""
    begun = text.strip()
    if not begun:
        return bool(types - {"string"})
    words = [word for kind in types for word in _WORDS.get(kind, ())]
    brackets = tuple(bracket for kind in types for bracket in _BRACKETS.get(kind, ()))
    number = bool(types & {"integer", "number"}) and _NUMBER.fullmatch(begun) is not None
    return number or begun.startswith(brackets) or any(word.startswith(begun) for word in words)


def _types_of(value: Any) -> Set[str]:
    """The JSON types that a value has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case Mapping():
            return {"object"}
    return {"array"}


def types_allowed(tools: Tools, tool: str, parameter: str) -> Set[str]:
    """The JSON types that the schema of a tool allows for a parameter; empty where it does not say."""
    properties = tools.get(tool, {}).get("properties")
    return _allowed(properties.get(parameter) if isinstance(properties, Mapping) else None)


def _allowed(schema: Any) -> Set[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    named, choices = schema.get("type"), schema.get("enum")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)}
    if isinstance(choices, list):
        return {"string"} if all(isinstance(each, str) for each in choices) else frozenset()
    for union in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(union, list):
            found = [_allowed(each) for each in union]
            return frozenset[str]().union(*found) if all(found) else frozenset()
    return frozenset()
