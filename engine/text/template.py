"""A compiled chat template, and what it expects of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from engine.base.errors import UnsupportedError, UsageError
from engine.text.budget import Budget, BudgetExceededError
from engine.text.guard import Fence, Guard
from engine.text.sandbox import TemplateEnvironment
from engine.text.template_library import RefusedError

_LARGEST_SOURCE = 1 << 20
_OTHER = "Use completions, or a checkpoint with another template."
# what code of a template can raise by itself
_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_MARK = "q7"  # a content that no template writes of itself


class TemplateFailureError(UsageError):
    """The template does not take this conversation."""


class TemplateStoppedError(UnsupportedError):
    """The template costs more than any honest one."""


@dataclass(frozen=True)
class Traits:
    """What a template takes, found by rendering harmless conversations."""

    parts: bool
    """Content may be a list of `{"type": "text", ...}`."""
    argument_text: bool
    """The arguments of a tool call may be JSON text; otherwise they must be objects."""
    spelled: frozenset[str]
    """Control tokens that it puts together from pieces, such as `'<|' + role + '|>'`."""
    called: str
    """What a conversation becomes in which a tool is called; empty where the template takes none."""


class Template:
    """One chat template. Its literals are sealed (see `engine.text.guard`), so what it renders is sealed too."""

    def __init__(self, source: str, guard: Guard, variables: Mapping[str, str]) -> None:
        """`variables` are the named special tokens that the template may write, such as `bos_token`."""
        if len(source) > _LARGEST_SOURCE:
            raise UnsupportedError(
                f"The model's chat template is {len(source)} characters long; at most {_LARGEST_SOURCE} are allowed.",
                _OTHER,
            )
        self._guard = guard
        self._variables = {name: guard.seal(text) for name, text in variables.items()}
        self._environment = TemplateEnvironment()
        try:
            tree = self._environment.parse(source)
            literals = []
            for literal in tree.find_all((nodes.TemplateData, nodes.Const)):
                if isinstance(literal, nodes.TemplateData):
                    literals.append(literal.data)
                    literal.data = guard.seal(literal.data)
                elif isinstance(literal, nodes.Const) and isinstance(literal.value, str):
                    literals.append(literal.value)
                    literal.value = guard.seal(literal.value)
            self.literals = tuple(literals)
            """Every text of the template's own."""
            self._template = self._environment.compile_budgeted(tree)
        except TemplateSyntaxError as error:
            message = f"The model's chat template cannot be compiled, line {error.lineno}: {error.message}."
            raise UnsupportedError(message, _OTHER) from error
        except (MemoryError, RecursionError, SyntaxError, ValueError) as error:  # of the Python that it becomes
            message = f"The model's chat template cannot be compiled: {error}."
            raise UnsupportedError(message, _OTHER) from error

    def render(self, variables: Mapping[str, Any], budget: Budget | None = None) -> str:
        """The sealed text for `variables` (`messages`, `tools`, ...).

        Raises TemplateFailureError for a conversation that the template does not take, TemplateStoppedError where it
        costs more than `budget`, by default what any honest template can do with.
        """
        try:
            return self._environment.render(self._template, {**self._variables, **variables}, budget or Budget())
        except RefusedError as error:
            raise TemplateFailureError(f"The model's chat template refuses the conversation: {error}.") from error
        except (BudgetExceededError, MemoryError) as error:
            reason = str(error) or "it takes too much memory"
            raise TemplateStoppedError(f"The model's chat template was stopped because {reason}.", _OTHER) from error
        except _FAILURES as error:
            raise TemplateFailureError(f"The model's chat template fails on the conversation: {error}.") from error

    @cached_property
    def traits(self) -> Traits:
        """Found by a few renderings when first asked for."""
        system, user, answer = ({"role": role, "content": _MARK} for role in ("system", "user", "assistant"))
        tool: dict[str, Any] = {"type": "function", "function": {"name": _MARK, "description": _MARK, "parameters": {}}}
        argument_text = f'{{"{_MARK}":1}}'
        calls = [{"id": _MARK, "type": "function", "function": {"name": _MARK, "arguments": argument_text}}]
        result = {"role": "tool", "name": _MARK, "tool_call_id": _MARK, "content": _MARK}
        with_call: list[Mapping[str, Any]] = [user, {"role": "assistant", "content": "", "tool_calls": calls}, result]
        parts = self._probe([{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
        called = self._probe(with_call, [tool])
        plain = (self._probe([user]), self._probe([system, user, answer, user]), called)
        return Traits(
            parts=_MARK in parts and "'type'" not in parts and '"type"' not in parts,
            argument_text=argument_text in called and f'"{argument_text}' not in called,
            spelled=frozenset().union(*map(self._guard.find, plain)),
            called=self._guard.unseal(called),
        )

    @cached_property
    def fence(self) -> Fence:
        """The fence for the tokens that this template spells."""
        return Fence(self.traits.spelled)

    def _probe(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """What a harmless conversation renders to; nothing where the template fails on it."""
        try:
            return self.render(
                {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True},
                Budget(steps=20_000, characters=1 << 24, seconds=3.0),
            )
        except TemplateFailureError:
            return ""
