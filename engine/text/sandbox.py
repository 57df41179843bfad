"""A jinja2 environment for chat templates: what transformers gives them, and a budget that a template cannot escape.

Templates come with checkpoints, so they are foreign code. jinja2's sandbox keeps them from the interpreter; the
budget keeps them from the machine: a template that loops for ever or writes without end is stopped.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.text.budget import Budget
from engine.text.template_library import FILTERS, GLOBALS, LARGEST_INDENT, GenerationBlocks

# Filters of our own that are put into compiled templates; with a space in the name no template can call them.
_BOOK_TURN = "book turn"
_CONCATENATE = "concatenate values"

# Without use for chats, and each able to make much of little.
_REMOVED_FILTERS = (
    *("batch", "center", "filesizeformat", "pprint", "random", "round", "slice", "striptags", "sum", "urlize"),
    *("wordwrap", "xmlattr"),
)
_REMOVED_STRING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE_PERCENT = re.compile(r"%[^A-Za-z%]*(?:\d{4}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\d{4}|\{)")
_LARGEST_EXPONENT = 64


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with transformers' filters and globals. Templates are rendered by `render`, within a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlocks, jinja2.ext.loopcontrols],
            finalize=self._book_output,
        )
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters.update(FILTERS)
        self.globals.update(GLOBALS)
        # one for each thread that renders; out of the reach of templates, unlike a variable of theirs
        self._budget: ContextVar[Budget] = ContextVar("budget")
        self._unguarded = {name: self.filters[name] for name in ("format", "indent", "join", "replace")}
        self.filters.update(format=self._format, indent=self._indent, join=self._join, replace=self._replace)
        self.filters.update({_BOOK_TURN: self._book_turn, _CONCATENATE: self._concatenate})

    def compile_budgeted(self, tree: nodes.Template) -> jinja2.Template:
        """Compiles `tree` so that each turn of a loop and each call of a macro is booked. Changes `tree`."""
        for concat in list(tree.find_all(nodes.Concat)):  # `~` is none of the operators that a sandbox may intercept
            values = nodes.List(concat.nodes)
            concat.nodes = [nodes.Filter(values, _CONCATENATE, [], [], None, None)]
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
            *tree.find_all(nodes.Block),  # can call itself: {{ self.name() }}
        ]
        for block in repeated:
            written = sum(len(data.data) for child in block.body for data in child.find_all(nodes.TemplateData))
            booking = nodes.Filter(nodes.Const(written), _BOOK_TURN, [], [], None, None)
            block.body.insert(0, nodes.ExprStmt(booking, lineno=block.lineno))
        tree.set_environment(self)
        return self.from_string(tree)

    def render(self, template: jinja2.Template, variables: Mapping[str, Any], budget: Budget) -> str:
        """What `template`, compiled here, makes of `variables`; BudgetExceededError when that costs too much."""
        before = self._budget.set(budget)
        try:
            return template.render(variables)
        finally:
            self._budget.reset(before)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget.get()
        if operator == "+":
            budget.build_value(left)
            budget.build_value(right)
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    budget.build_value(many, max(times, 0))
        elif operator == "%" and isinstance(left, str):
            _refuse(_WIDE_PERCENT.search(left), f"the format {left[:40]!r}")
        elif operator == "**":
            _refuse(not isinstance(right, int | float) or right > _LARGEST_EXPONENT, f"the exponent {right!r}")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str):
            __self._budget.get().build(_grown_length(__obj.__self__, __obj.__name__, args))
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _REMOVED_STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _refuse(_WIDE_BRACES.search(value.__self__), f"the format {value.__self__[:40]!r}")
        return wrapped

    # jinja2 computes filters of constants while it compiles, unless they ask for the context, as most of these do.

    @jinja2.pass_context
    def _book_output(self, context: Context, value: Any) -> str:
        """Books what an expression writes; jinja2 passes each through here."""
        text = value if isinstance(value, str) else str(value)
        self._budget.get().build(len(text))
        return text

    @jinja2.pass_context
    def _book_turn(self, context: Context, characters: int) -> None:
        self._budget.get().step(characters)

    @jinja2.pass_context
    def _concatenate(self, context: Context, values: list[Any]) -> str:
        texts = [str(value) for value in values]
        self._budget.get().build(sum(map(len, texts)))
        return "".join(texts)

    @jinja2.pass_context
    def _join(self, context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
        values = list(value)
        self._budget.get().build(_grown_length(str(d), "join", (values if attribute is None else len(values) * [""],)))
        return self._unguarded["join"](context.eval_ctx, values, d, attribute)

    @jinja2.pass_context
    def _replace(self, context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
        self._budget.get().build(_grown_length(str(s), "replace", (str(old), str(new))))
        return self._unguarded["replace"](context.eval_ctx, s, old, new, count)

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(_WIDE_PERCENT.search(str(value)), f"the format {str(value)[:40]!r}")
        return self._unguarded["format"](value, *args, **kwargs)

    @jinja2.pass_context
    def _indent(self, context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
        size = len(width) if isinstance(width, str) else width
        _refuse(size > LARGEST_INDENT, f"an indent of {size}")
        self._budget.get().build(len(s) + size * (s.count("\n") + 1))
        return self._unguarded["indent"](s, width, first, blank)


def _refuse(found: object, what: str) -> None:
    if found:
        raise SecurityError(f"{what} is not allowed in a chat template")


def _grown_length(text: str, method: str, args: tuple[Any, ...]) -> int:
    """The most characters that a method of `text` can make."""
    if method == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        return len(text) + text.count(args[0]) * len(args[1])
    if method == "join" and args and isinstance(args[0], str | list | tuple):
        return len(args[0]) * len(text) + sum(len(part) for part in args[0] if isinstance(part, str))
    return len(text)
