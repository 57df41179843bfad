"""Calls that grammars hold: those that a request forces, and those that a model chooses to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.front.forms.answer_forms import Arguments, arguments_grammar, grammar_with_arguments, text_grammar_before
from engine.front.forms.call_blocks import CallBlock, call_block
from engine.front.forms.custom_tools import INPUT
from engine.front.forms.quoted_grammars import UnquotableError
from engine.front.forms.tagged_blocks import tagged_block
from engine.front.forms.text_grammars import TextGrammar
from engine.front.forms.tools import ToolUse
from engine.front.wire.fields import FieldError
from engine.text.formats.parser import Part, forced_beginning
from engine.text.formats.readers import TaggedPairs
from engine.text.formats.reasoning import thought_edges
from engine.text.formats.record import AnswerFormat
from engine.text.text import Text
from engine.worker.protocol import Grammar, Passages


@dataclass(frozen=True)
class HeldCalls:
    """How an answer has to begin, and the grammar of its calls; without one the model is left alone with them.

    `enforced` are the tools whose calls are all that is wished of them: strict ones that follow their schemas, and
    custom ones whose texts follow the grammars of their formats.
    """

    begun: str = ""
    grammar: Grammar | None = None
    enforced: frozenset[str] = frozenset()


def held_calls(text: Text, form: AnswerFormat, use: ToolUse, part: Part) -> HeldCalls:
    """The calls that `use` forces or allows in a model's format, in an answer that begins in `part`.

    Chosen ones are held where a tool is strict or has a grammar; otherwise what only looks like a call stays text.
    Unless others may follow it the answer ends with its first call. FieldError for a strict tool whose schema cannot be
    followed.
    """
    begun = "" if use.forced is None else forced_beginning(form, use.forced)
    schemas = use.schemas or {}
    names = [use.forced] if use.forced else sorted(schemas)
    parallel = use.several
    bare = form.calls is not None and form.calls.bare and use.forced is None  # where nothing says that a call begins
    block = None if bare or not names else call_block(text, form, names, parallel)
    if block is None:
        return _tagged_calls(text, form, use, part, begun, names)
    arguments = {name: _arguments(name, schemas[name], use) for name in names}
    enforced = frozenset(name for name in names if arguments[name].exact)
    if use.forced is None and not enforced:
        return HeldCalls()
    lark = _grammar(block, arguments, use)
    return HeldCalls(begun, _behind_marker(text, form, part, block.marker, begun, lark, parallel), enforced)


def _behind_marker(
    text: Text, form: AnswerFormat, part: Part, marker: str, begun: str, lark: str, parallel: bool
) -> Grammar:
    """A grammar of blocks that hold from their markers on; the prompt may have `begun` the first."""
    return Grammar(
        lark,
        after=text.spelling(marker),
        then_free=parallel,
        again=parallel,
        aside=_aside(text, form, part, begun),
        begun=_behind(text, marker, begun) if begun else None,
    )


def _grammar(block: CallBlock, arguments: Mapping[str, Arguments], use: ToolUse) -> str:
    try:
        return grammar_with_arguments(block.rules, [*arguments.values()])
    except FieldError:
        for name in use.offer.strict.keys() & arguments.keys():
            arguments_grammar(arguments[name], use.offer.strict[name])
        raise


def _aside(text: Text, form: AnswerFormat, part: Part, begun: str) -> Passages | None:
    """Where the marker of a block means nothing: in reasoning, or in messages behind their headers."""
    if form.channels is not None:
        opens, closes = form.channels.message, (form.channels.opens, *form.channels.closes)
        inside = form.channels.message in begun if begun else part is not Part.BETWEEN
        return Passages((text.spelling(opens),), tuple(map(text.spelling, closes)), inside)
    edges = thought_edges(form, calls=True, formed=False)
    if edges is None:
        return None
    opening = text.spelling(edges.opens, edges.first)
    return Passages((opening,), tuple(map(text.spelling, edges.closes)), part is Part.THOUGHT and not begun)


def _behind(text: Text, marker: str, begun: str) -> tuple[int, ...]:
    """The tokens of what a forced call begins with behind the marker of its block, which it may lack."""
    return tuple(text.encode_prompt(begun.rpartition(marker)[2], add_special=False))


def _tagged_calls(
    text: Text, form: AnswerFormat, use: ToolUse, part: Part, begun: str, names: Sequence[str]
) -> HeldCalls:
    """Calls whose arguments stand between tags."""
    parallel = use.several
    strict = use.offer.strict.keys() & set(names)
    if form.calls is None or not isinstance(form.calls.reader, TaggedPairs) or not strict:
        return _tagged_call(text, form, use, begun, parallel)
    schemas = use.schemas or {}
    block, held = tagged_block(text, form.calls, {n: schemas[n] if n in strict else None for n in names}, parallel)
    if not held:
        return HeldCalls(begun)
    try:
        lark = grammar_with_arguments(block.rules, ())
    except FieldError:
        for name in held:
            grammar_with_arguments(
                tagged_block(text, form.calls, {name: schemas[name]}, False)[0].rules, (), use.offer.strict[name]
            )
        raise
    return HeldCalls(begun, _behind_marker(text, form, part, block.marker, begun, lark, parallel), held)


def _tagged_call(text: Text, form: AnswerFormat, use: ToolUse, begun: str, parallel: bool) -> HeldCalls:
    """A forced call of a custom tool whose text stands between tags as it is."""
    tool = use.forced or ""
    grammar = use.offer.grammars.get(tool)
    if grammar is None or form.calls is None or not isinstance(form.calls.reader, TaggedPairs):
        return HeldCalls(begun)
    opens, closes = form.calls.reader.around(INPUT)
    if not text.spells(closes):
        return HeldCalls(begun)
    try:
        lark = text_grammar_before(grammar.lark, closes)
    except FieldError:
        return HeldCalls(begun)
    return HeldCalls(begun + opens, Grammar(lark, then_free=parallel), frozenset({tool}))


def _arguments(name: str, schema: Mapping[str, Any], use: ToolUse) -> Arguments:
    """What the arguments of a tool have to be: a text of its grammar, where JSON can hold it, or of its schema.

    Those of a tool that is neither forced nor strict are any object: a grammar of its schema would fix the order of
    its members and how characters are escaped, too, and leave out what the model writes late.
    """
    grammar = use.offer.grammars.get(name)
    if grammar is not None:
        try:
            held = _held(grammar)
            arguments_grammar(held)
            return held
        except (UnquotableError, FieldError):
            pass
    if name in use.offer.strict:
        return Arguments(schema, exact=True)
    return Arguments(None if use.forced is None else schema)


def _held(grammar: TextGrammar) -> Arguments:
    if grammar.syntax == "lark":
        return Arguments({}, exact=True, text=grammar.definition)
    text = {"type": "string", "pattern": f"^(?:{grammar.definition})$"}
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return Arguments(schema, exact=True)
