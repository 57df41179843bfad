"""Arguments that a model wrote as bare text, made JSON values by what the tool's schema expects."""

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
    return Call(name, json.dumps(arguments or {}, ensure_ascii=False), identity)


def read_json(text: str) -> Any:
    """The JSON value that `text` is, its strings perhaps with raw line ends. MalformedCallError for other text."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise MalformedCallError from None


def typed(text: str, tools: Tools, tool: str, parameter: str) -> Any:
    """The value of a parameter: text where the schema says string, else JSON or a Python literal where it is one."""
    expected = _types(tools.get(tool, {}), parameter)
    if expected == {"string"}:
        return text
    stripped = text.strip()
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if _is_json(value) else text


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


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
