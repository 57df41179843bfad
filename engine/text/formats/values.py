"""Values of arguments as JSON, those that a model wrote as bare text by what the tool's schema expects."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from engine.text.formats.pieces import Call, MalformedCallError, Tools


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


def typed(text: str, tools: Tools, tool: str, parameter: str) -> Any:
    """The value of a parameter: text where the schema says string, else JSON or a Python literal where it is one."""
    if is_text(tools, tool, parameter):
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
            written(value)
            return value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    return text


def is_text(tools: Tools, tool: str, parameter: str) -> bool:
    """Whether the value of a parameter can be nothing but text."""
    return _types(tools.get(tool, {}), parameter) == {"string"}


def _types(schema: Mapping[str, Any], parameter: str) -> set[str]:
    """The JSON types that a schema allows for a parameter; empty where it does not say."""
    properties = schema.get("properties")
    found = properties.get(parameter) if isinstance(properties, Mapping) else None
    if not isinstance(found, Mapping):
        return set()
    named = found.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)}
    choices = found.get("enum")
    return {"string"} if isinstance(choices, list) and all(isinstance(each, str) for each in choices) else set()
