"""JSON schemas of what requests hold that is more than a number or a text. They may be wider than what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_OBJECT: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}


def _object(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": [*required]}


def _kind(kind: str, /, **members: Schema) -> Schema:
    """An object of a kind that its `type` names."""
    return _object({"type": {"const": kind}, **members})


def _some(items: Schema, least: int = 1) -> Schema:
    return {"type": "array", "minItems": least, "items": items}


OF_TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXT_PARTS = {"anyOf": [_TEXT, _some(_kind("text", text=_TEXT))]}
_CALL = _kind("function", id=_TEXT, function=_object({"name": _TEXT, "arguments": _TEXT}))
_CUSTOM_CALL = _kind("custom", id=_TEXT, custom=_object({"name": _TEXT, "input": _TEXT}))
OF_MESSAGES: Schema = _some(
    {
        "anyOf": [
            _object({"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": _TEXT_PARTS}),
            _object(
                {"role": {"const": "assistant"}, "tool_calls": _some({"anyOf": [_CALL, _CUSTOM_CALL]})}, content=_TEXT
            ),
            _object({"role": {"const": "tool"}, "tool_call_id": _TEXT, "content": _TEXT_PARTS}),
        ]
    }
)
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"}
_GRAMMAR = {"syntax": {"enum": ["lark", "regex"]}, "definition": _TEXT}
_CUSTOM_FORMAT = {"anyOf": [_kind("text"), _kind("grammar", **_GRAMMAR), _kind("grammar", grammar=_object(_GRAMMAR))]}
OF_TOOLS: Schema = _some(
    {
        "anyOf": [
            _kind("function", function=_object({"name": _NAME}, description=_TEXT, parameters=_OBJECT, strict=_FLAG)),
            _kind("custom", custom=_object({"name": _NAME}, description=_TEXT, format=_CUSTOM_FORMAT)),
        ]
    },
    0,
)
OF_TOOL_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        *(_kind(kind, **{kind: _object({"name": _NAME})}) for kind in ("function", "custom")),
        _kind(
            "allowed_tools", allowed_tools=_object({"mode": {"enum": ["auto", "required"]}, "tools": _some(_OBJECT)})
        ),
    ]
}
OF_RESPONSE_FORMAT: Schema = {
    "anyOf": [
        _object({"type": {"enum": ["text", "json_object"]}}),
        _kind("json_schema", json_schema=_object({"schema": _OBJECT}, name=_TEXT)),
        _kind("json_schema", schema=_OBJECT),
    ]
}
_RESULT = {"anyOf": [_TEXT, _some(_kind("text", text=_TEXT))]}
_BLOCK: Schema = {
    "anyOf": [
        _kind("text", text=_TEXT),
        _kind("thinking", thinking=_TEXT),
        _kind("tool_use", id=_TEXT, name=_TEXT, input=_OBJECT),
        _kind("tool_result", tool_use_id=_TEXT, content=_RESULT),
        _kind("document", source=_kind("text", data=_TEXT)),
    ]
}
OF_SYSTEM: Schema = {"anyOf": [_TEXT, _some(_kind("text", text=_TEXT))]}
OF_ANTHROPIC_MESSAGES: Schema = _some(
    _object({"role": {"enum": ["user", "assistant", "system"]}, "content": {"anyOf": [_TEXT, _some(_BLOCK)]}})
)
_ITEM: Schema = {
    "anyOf": [
        _object(
            {
                "role": {"enum": ["system", "developer", "user", "assistant"]},
                "content": {"anyOf": [_TEXT, _some(_kind("input_text", text=_TEXT))]},
            }
        ),
        _kind("function_call", name=_TEXT, arguments=_TEXT, call_id=_TEXT),
        _kind("custom_tool_call", name=_TEXT, input=_TEXT, call_id=_TEXT),
        *(_kind(f"{kind}_output", call_id=_TEXT, output=_TEXT) for kind in ("function_call", "custom_tool_call")),
        _kind("reasoning", summary=_some(_kind("summary_text", text=_TEXT))),
    ]
}
OF_INPUT: Schema = {"anyOf": [_TEXT, _some(_ITEM)]}
