"""What a request says of the form of its answer, as a grammar for the worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from reprlib import repr as shown
from typing import Any

from engine.front.forms.custom_tools import INPUT
from engine.front.forms.quoted_grammars import START, quoted_grammar
from engine.front.wire import fields
from engine.front.wire.fields import FieldError, described
from engine.front.wire.schemas import OF_RESPONSE_FORMAT

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_HEAD = "start: SPACE value\nSPACE: /[ \\t\\r\\n]{0,8}/\n"
_BEGINS_TEXT, _ENDS_TEXT = (json.dumps(words) for words in (f'{{"{INPUT}": "', '"}'))
_KEPT = 64  # grammars of which it is known whether they make sense: an agent sends the same with every request
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Members of a schema that hold no schemas."""


@dataclass(frozen=True)
class AnswerForm:
    """The grammar of an answer, "" for any text; and the member whose schema it follows in part alone, if any."""

    grammar: str = ""
    partly: tuple[str, ...] = ()


@described(OF_RESPONSE_FORMAT)
def response_format(name: str, value: Any) -> AnswerForm:
    """OpenAI's `response_format`, flat or with the schema in a member of its own."""
    form = fields.mapping(name, value)
    match form.get("type", "text"):
        case "text":
            return AnswerForm()
        case "json_object":
            return _json_form(name)
        case "json_schema":
            where, holder = name, form
            if "json_schema" in form:
                where = f"{name}.json_schema"
                holder = fields.mapping(where, form["json_schema"])
            schema = fields.mapping(f"{where}.schema", holder.get("schema"))
            return _json_form(f"{where}.schema", schema, strict=holder.get("strict") is True)
        case other:
            raise FieldError(f"{name}.type", f"{shown(other)} is not one of text, json_object, json_schema.")


@described({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]})
def ollama_format(name: str, value: Any) -> AnswerForm:
    """Ollama's `format`: "json", a schema, or "" for any text."""
    if value == "":
        return AnswerForm()
    return _json_form(name) if value == "json" else _json_form(name, fields.mapping(name, value))


def _json_form(name: str, schema: Mapping[str, Any] = _ANY_OBJECT, strict: bool = False) -> AnswerForm:
    """JSON that a schema describes. FieldError about the member `name` where it makes no sense, or, if it is `strict`,
    where grammars cannot follow all of it.
    """

    def grammar(**options: Any) -> str:
        described = _without_odd_patterns(schema) if options else schema
        return f"{_HEAD}value: %json {json.dumps(_with(described, coerce_one_of=True, **options))}\n"

    whole = grammar()
    problem = _problem(whole)
    if not problem:
        return AnswerForm(whole)
    rest = "" if strict else grammar(lenient=True)
    if strict or _problem(rest):
        remedy = "Without `strict` what cannot be followed is left to the model." if strict else ""
        raise FieldError(name, f"this JSON schema cannot be followed: {problem}.", remedy)
    return AnswerForm(rest, (name,))


@dataclass(frozen=True)
class Arguments:
    """What the arguments of a call have to be: of a `schema`, of which what no grammar can follow is left to the model
    unless they are to be `exact`; or the one text of a custom tool, a JSON string whose text follows the grammar
    `text`; or, without a schema, the object that the rules around have under the name `object`.
    """

    schema: Mapping[str, Any] | None
    exact: bool = False
    text: str = ""

    def rules(self, name: str, read: _Reading) -> str:
        """The rule `name` of them, and what it needs. UnquotableError for a `text` that JSON cannot be held to."""
        if self.text:
            prefix = f"{name.upper()}-"
            return f"{name}: {_BEGINS_TEXT} {prefix}{START} {_ENDS_TEXT}\n{quoted_grammar(self.text, prefix)}\n"
        if self.schema is None:
            return f"{name}: object\n"
        schema = self.schema if self.exact else read(self.schema)
        return f"{name}: %json {json.dumps(_with(schema or _ANY_OBJECT, lenient=not self.exact))}\n"


def grammar_with_arguments(rules: str, arguments: Sequence[Arguments], place: str = "tools") -> str:
    """The grammar of `rules` that lack those of the `arguments` of each tool, `arguments0` and so on.

    FieldError about the member `place` where they cannot be followed.
    """

    def grammar(read: _Reading) -> str:
        return "".join([rules, *(each.rules(f"arguments{index}", read) for index, each in enumerate(arguments))])

    return _sound(map(grammar, _READINGS), place)


def arguments_grammar(arguments: Arguments, place: str = "tools") -> str:
    """The grammar of a call's arguments. FieldError about the member `place` where they cannot be followed."""
    return _sound((arguments.rules("start", read) for read in _READINGS), place)


def text_grammar_before(lark: str, end: str) -> str:
    """The grammar of a text that follows `lark`, and of the words that `end` it."""
    grammars = [{"lark_grammar": f"start: @text {json.dumps(end)}\n"}, {"name": "text", "lark_grammar": lark}]
    return _sound([json.dumps({"grammars": grammars})])


def _sound(grammars: Iterable[str], place: str = "tools") -> str:
    """The first of them that makes sense. FieldError about the member `place` where none does."""
    problems = []
    for grammar in grammars:
        if not (problem := _problem(grammar)):
            return grammar
        problems.append(problem)
    remedy = "Without `strict` what cannot be followed is left to the model." if place != "tools" else ""
    raise FieldError(place, f"this JSON schema cannot be followed: {problems[0]}.", remedy)


@lru_cache(_KEPT)
def _problem(grammar: str) -> str:
    """Why a grammar cannot be compiled; "" where it can be."""
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(grammar).partition("JSON schema: ")
    return (problem[2] or problem[0]).partition("\n")[0].rstrip(":")


def _without_odd_patterns(schema: Any) -> Any:
    """A schema without the patterns that no grammar can follow, such as those that look ahead."""
    if isinstance(schema, list):
        return [_without_odd_patterns(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: each if name in _DATA else _without_odd_patterns(each) for name, each in schema.items()}
    pattern = {"type": "string", "pattern": schema.get("pattern")}
    if isinstance(pattern["pattern"], str) and _problem(f"start: %json {json.dumps(pattern)}\n"):
        del kept["pattern"]
    return kept


_Reading = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_READINGS: tuple[_Reading, ...] = (lambda schema: schema, _without_odd_patterns)
"""How schemas of tools are read: as they are, or else without what llguidance itself would not leave out."""


def _with(schema: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
    """A schema whose JSON has some space between its parts, and not without end."""
    return {**schema, "x-guidance": {"whitespace_pattern": "[ \\n\\t]{0,12}", **options}}
