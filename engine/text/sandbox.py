"""A jinja2 environment for chat templates: what transformers gives them, and a budget that a template cannot escape.

Templates come with checkpoints, so they are foreign code. jinja2's sandbox keeps them from the interpreter; the
budget keeps them from the machine: a template that loops for ever or writes without end is stopped.
"""

from __future__ import annotations

import re
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.text.template_library import FILTERS, GLOBALS, GenerationBlocks

BUDGET_VARIABLE = "_budget"
"""The template variable that carries the `Budget` of one rendering; templates have no use for it."""

# Without use for chats, and each able to make much of little.
_REMOVED_FILTERS = (
    *("batch", "center", "filesizeformat", "pprint", "random", "round", "slice", "striptags", "sum", "urlize"),
    *("wordwrap", "xmlattr"),
)
_REMOVED_STRING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE_PERCENT = re.compile(r"%[^A-Za-z%]*(?:\d{4}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\d{4}|\{)")
_LARGEST_EXPONENT = 64
_LARGEST_INDENT = 64


class BudgetExceededError(TemplateError):
    """The template took more time, steps or memory than any honest one needs."""


class Budget:
    """What one rendering may cost: turns of loops and macros, characters built and written, seconds."""

    def __init__(self, steps: int = 1_000_000, characters: int = 1 << 28, seconds: float = 10.0) -> None:
        self._steps_left = steps
        self._characters_left = characters
        self._deadline = time.monotonic() + seconds

    def step(self, characters: int) -> None:
        """Books one turn that writes `characters`."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise BudgetExceededError("it runs for too many steps")
        if time.monotonic() > self._deadline:
            raise BudgetExceededError("it takes too long")
        self.build(characters)

    def build(self, characters: int) -> None:
        """Books a text of `characters`; call it before a text that may be huge is made."""
        self._characters_left -= characters
        if self._characters_left < 0:
            raise BudgetExceededError("it builds too much text")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with transformers' filters and globals. Render with a `Budget` in `BUDGET_VARIABLE`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlocks, jinja2.ext.loopcontrols],
            finalize=_book_output,
        )
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters.update(FILTERS)
        self.globals.update(GLOBALS)
        for name, guarded in (("format", _format), ("indent", _indent), ("join", _join), ("replace", _replace)):
            self.filters[name] = guarded(self.filters[name])

    def compile_budgeted(self, tree: nodes.Template) -> jinja2.Template:
        """Compiles `tree` so that each turn of a loop and each call of a macro is booked. Changes `tree`."""
        for concat in list(tree.find_all(nodes.Concat)):  # `~` is none of the operators that a sandbox may intercept
            concat.nodes = [nodes.Call(nodes.EnvironmentAttribute("concatenated"), concat.nodes, [], None, None)]
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
        ]
        for block in repeated:
            written = sum(len(data.data) for child in block.body for data in child.find_all(nodes.TemplateData))
            booking = nodes.Call(nodes.EnvironmentAttribute("book"), [nodes.Const(written)], [], None, None)
            block.body.insert(0, nodes.ExprStmt(booking, lineno=block.lineno))
        tree.set_environment(self)
        return self.from_string(tree)

    @staticmethod
    @jinja2.pass_context
    def book(context: Context, characters: int) -> None:
        """Books one turn of the rendering that `context` belongs to."""
        _budget(context).step(characters)

    @staticmethod
    @jinja2.pass_context
    def concatenated(context: Context, *values: object) -> str:
        """What `a ~ b ~ c` makes."""
        texts = [str(value) for value in values]
        _budget(context).build(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            budget.build(len(left) + len(right))
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    budget.build(len(many) * max(times, 0))
        elif operator == "%" and isinstance(left, str):
            _refuse(_WIDE_PERCENT.search(left), f"the format {left[:40]!r}")
        elif operator == "**":
            _refuse(not isinstance(right, int | float) or right > _LARGEST_EXPONENT, f"the exponent {right!r}")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str):
            grown = _grown_length(__obj.__self__, __obj.__name__, args)
            _budget(__context).build(grown)
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


def _budget(context: Context) -> Budget:
    budget = context.parent[BUDGET_VARIABLE]  # not resolve(): the template may set a variable of this name
    assert isinstance(budget, Budget)
    return budget


@jinja2.pass_context
def _book_output(context: Context, value: Any) -> Any:
    """Books what an expression writes; jinja2 calls it for each."""
    text = value if isinstance(value, str) else str(value)
    _budget(context).build(len(text))
    return text


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


Filter = Callable[..., Any]


def _format(original: Filter) -> Filter:
    def format(value: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(_WIDE_PERCENT.search(str(value)), f"the format {str(value)[:40]!r}")
        return original(value, *args, **kwargs)

    return format


def _indent(original: Filter) -> Filter:
    def indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
        size = len(width) if isinstance(width, str) else width
        _refuse(size > _LARGEST_INDENT, f"an indent of {size}")
        return original(s, width, first, blank)

    return indent


def _join(original: Filter) -> Filter:
    @jinja2.pass_context
    def join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
        values = list(value)
        if attribute is None:
            _budget(context).build(_grown_length(str(d), "join", (values,)))
        else:
            _budget(context).build(len(values) * len(str(d)))
        return original(context.eval_ctx, values, d, attribute)

    return join


def _replace(original: Filter) -> Filter:
    @jinja2.pass_context
    def replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
        _budget(context).build(_grown_length(str(s), "replace", (str(old), str(new))))
        return original(context.eval_ctx, s, old, new, count)

    return replace
