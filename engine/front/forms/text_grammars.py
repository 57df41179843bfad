"""Grammars of the texts that custom tools take: as requests say them, and as forced calls are held to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as shown
from typing import Any

from engine.front.wire import fields
from engine.front.wire.fields import FieldError


@dataclass(frozen=True)
class TextGrammar:
    """What a text has to look like: `definition` is a grammar in the notation `syntax`, lark or regex, of llguidance.

    `field` is the place of the format in the request, and `place` that of the definition.
    """

    field: str
    place: str
    syntax: str
    definition: str

    @cached_property
    def lark(self) -> str:
        """The grammar in Lark's notation."""
        from llguidance import LLMatcher

        if self.syntax == "lark":
            return self.definition
        (grammar,) = json.loads(LLMatcher.grammar_from_regex(self.definition))["grammars"]
        return str(grammar["lark_grammar"])

    def check(self) -> None:
        """FieldError about the definition where the library refuses it."""
        from llguidance import LLMatcher

        if problem := LLMatcher.validate_grammar(self.lark):
            raise FieldError(self.place, f"this grammar cannot be followed: {problem.splitlines()[0]}.")


def text_grammar(name: str, form: Any) -> TextGrammar | None:
    """The grammar of a custom tool's format, the member `name`; it stands there or in a member of its own.

    None for any text; FieldError for a format that is none.
    """
    form = {} if form is None else fields.mapping(name, form)
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind != "grammar":
        raise FieldError(f"{name}.type", f"{shown(kind)} is not one of text, grammar.")
    where = f"{name}.grammar" if "grammar" in form else name
    grammar: Mapping[str, Any] = fields.mapping(where, form.get("grammar", form))
    syntax = grammar.get("syntax")
    if syntax not in ("lark", "regex"):
        raise FieldError(f"{where}.syntax", f"{shown(syntax)} is not one of lark, regex.")
    place = f"{where}.definition"
    return TextGrammar(name, place, syntax, fields.text(place, grammar.get("definition")))
