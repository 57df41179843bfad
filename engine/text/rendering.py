"""A conversation through a chat template: the text, its control tokens sealed, and where the template's markers are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.base.errors import UnsupportedError, UsageError
from engine.memory.retention import Anchor
from engine.text.anchors import edges, plain_markers
from engine.text.conversation import Conversation
from engine.text.formats.choice import format_of
from engine.text.formats.record import AnswerFormat
from engine.text.guard import Guard
from engine.text.template import Template, TemplateFailureError


@dataclass(frozen=True)
class Asked:
    """What is to be rendered, as it came from outside. Tools may be None: there are none."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """A prompt before it is encoded: sealed text, and the edges of plain markers by characters of it."""

    sealed: str
    edges: tuple[Anchor, ...] = ()


class Rendering:
    """One chat template with the guard of its control tokens.

    Markers that are ordinary text to the tokenizer (`<tool_response>`) are found by rendering a second time, with them
    sealed as control tokens are: so it is known which were the template's or a model's, and which somebody else's text.
    The prompt is that of the first rendering, whatever the second one comes to.
    """

    def __init__(self, source: str, guard: Guard, variables: Mapping[str, str]) -> None:
        self._source = source
        self._guard = guard
        self._variables = variables
        self.template = Template(source, guard, variables)

    @cached_property
    def answer_format(self) -> AnswerFormat:
        """How the model's answers to this template are read."""
        return format_of(f"{self._source}\n{self.template.traits.called}")

    def render(self, asked: Asked) -> Rendered:
        """The prompt for a conversation. Raises UsageError naming the message that is wrong."""
        sealed = _Prepared(self.template, self._guard, asked).render()
        return Rendered(sealed, () if self._marked is None else self._edges(self._marked, asked, sealed))

    @cached_property
    def _marked(self) -> tuple[Template, Guard, re.Pattern[str]] | None:
        """The template with its plain markers sealed too, and what finds them; None where it has none."""
        markers = plain_markers(self.template.literals, self._guard.tokens)
        if not markers:
            return None
        try:
            guard = self._guard.with_markers(markers)
        except UnsupportedError:  # more kinds of tokens than there are seals
            return None
        spellings = sorted(map(guard.sealed, markers), key=len, reverse=True)
        return Template(self._source, guard, self._variables), guard, re.compile("|".join(map(re.escape, spellings)))

    def _edges(self, marked: tuple[Template, Guard, re.Pattern[str]], asked: Asked, sealed: str) -> tuple[Anchor, ...]:
        """The edges of plain markers, or none where sealing them changes what the template makes of a conversation."""
        template, guard, pattern = marked
        try:
            twin = _Prepared(template, guard, asked).render()
        except (UnsupportedError, UsageError):
            return ()
        if guard.unseal(twin) != self._guard.unseal(sealed):
            return ()
        places: list[Anchor] = []
        for found in pattern.finditer(twin):
            ((edge, opens),) = edges([(0, guard.unseal(found[0]))])
            places.append((found.end() if edge else found.start(), opens))
        return tuple(places)


class _Prepared:
    """A conversation made ready for one template."""

    def __init__(self, template: Template, guard: Guard, asked: Asked) -> None:
        self._template = template
        self._guard = guard
        conversation = Conversation(guard, template.fence, template.traits)
        self._messages = conversation.messages(asked.messages)
        given = asked.variables.items()
        self._variables = {
            "documents": None,
            **{name: conversation.data(value, f"The variable {name}") for name, value in given},
            "tools": None if asked.tools is None else conversation.data(list(asked.tools), "The list of tools"),
            "add_generation_prompt": asked.add_generation_prompt,
        }

    def render(self) -> str:
        """The sealed text. Raises UsageError that says at which message the template fails."""
        try:
            text = self._try(self._messages)
        except TemplateFailureError as error:
            raise UsageError(f"{error.message}{self._where()}", error.remedy) from error
        return self._template.fence.seal_spelled(text, self._guard)

    def _try(self, messages: list[dict[str, Any]]) -> str:
        """Renders; where messages lack content and the template cannot bear that, they get an empty one."""
        try:
            return self._template.render({**self._variables, "messages": messages})
        except TemplateFailureError:
            filled = [message if "content" in message else {**message, "content": ""} for message in messages]
            if filled == messages:
                raise
            return self._template.render({**self._variables, "messages": filled})

    def _where(self) -> str:
        """Which message the template stumbles over: the last of the shortest beginning that fails, by bisection."""
        low, high = 0, len(self._messages)  # the first `low` messages render, the first `high` fail
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._try(self._messages[:middle])
                low = middle
            except TemplateFailureError:
                high = middle
        return f" It stops at message {high}, with the role {self._messages[high - 1]['role']}."
