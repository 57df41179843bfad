"""Calls that a request forces: the words with which they begin, and the grammar of what the model writes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.front.forms.answer_forms import Arguments, arguments_grammar, call_grammar, text_grammar_before
from engine.front.forms.custom_tools import INPUT
from engine.front.forms.quoted_grammars import UnquotableError
from engine.front.forms.text_grammars import TextGrammar
from engine.front.forms.tools import ToolUse
from engine.front.wire.fields import FieldError
from engine.text.formats.parser import forced_beginning
from engine.text.formats.readers import TaggedPairs
from engine.text.formats.record import NAME, AnswerFormat
from engine.text.text import Text
from engine.worker.protocol import Grammar


@dataclass(frozen=True)
class ForcedCall:
    """How an answer has to begin, and the grammar of what follows; without one the model is left alone with it.

    `enforced` are the custom tools whose texts follow the grammars of their formats.
    """

    begun: str
    grammar: Grammar | None = None
    enforced: frozenset[str] = frozenset()


def forced_call(text: Text, form: AnswerFormat, use: ToolUse, parallel: bool) -> ForcedCall:
    """The call that `use` forces, in a model's format.

    Unless others may follow it, in `parallel`, the answer ends with its arguments: a weak model would write on instead
    of closing it.
    """
    tool = use.forced or ""
    begun = forced_beginning(form, tool)
    if form.calls is not None and not form.calls.reader.quotes:
        grammar = use.grammars.get(tool)
        if grammar is None or not isinstance(form.calls.reader, TaggedPairs):
            return ForcedCall(begun)
        return _tagged_call(text, form.calls.reader, grammar, begun, tool, parallel)
    schemas = use.schemas or {}
    arguments = {name: _arguments(schemas[name], use.grammars.get(name)) for name in ([tool] if tool else schemas)}
    if tool:
        lark = arguments_grammar(arguments[tool])
    else:
        beginning = (form.channels or form.calls).forced.partition(NAME)[2]  # type: ignore[union-attr]
        if any(marker in beginning for marker in form.markers):
            return ForcedCall(begun)  # control tokens, which no grammar of text spells
        lark = call_grammar(beginning, arguments)
    enforced = frozenset(name for name in use.grammars if name in arguments and not arguments[name].lenient)
    return ForcedCall(begun, Grammar(lark, then_free=parallel), enforced)


def _tagged_call(
    text: Text, reader: TaggedPairs, grammar: TextGrammar, begun: str, tool: str, parallel: bool
) -> ForcedCall:
    """A call whose text stands between tags as it is."""
    opens, closes = reader.around(INPUT)
    if not text.spells(closes):
        return ForcedCall(begun)
    try:
        lark = text_grammar_before(grammar.lark, closes)
    except FieldError:
        return ForcedCall(begun)
    return ForcedCall(begun + opens, Grammar(lark, then_free=parallel), frozenset({tool}))


def _arguments(schema: Mapping[str, Any], grammar: TextGrammar | None) -> Arguments:
    """What the arguments of a tool have to be: of its schema, or a text of that `grammar`, where JSON can hold it."""
    if grammar is not None:
        try:
            held = _held(grammar)
            arguments_grammar(held)
            return held
        except (UnquotableError, FieldError):
            pass
    return Arguments(schema)


def _held(grammar: TextGrammar) -> Arguments:
    if grammar.syntax == "lark":
        return Arguments({}, lenient=False, text=grammar.definition)
    text = {"type": "string", "pattern": f"^(?:{grammar.definition})$"}
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return Arguments(schema, lenient=False)
