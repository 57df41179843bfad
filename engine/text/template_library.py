"""The filters, functions and tags that transformers gives to chat templates beyond jinja2's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

LARGEST_INDENT = 16
"""Spaces a level."""


class RefusedError(TemplateError):
    """The template itself refuses the conversation, by `raise_exception`."""


class GenerationBlocks(Extension):
    """`{% generation %}` marks what a model wrote, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # a scope of its own, as in transformers, where the body is a macro: what it sets is gone after it
        return nodes.CallBlock(self.call_method("_rendered"), [], [], body).set_lineno(line)

    @staticmethod
    def _rendered(caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter would escape `<`, `>` and `&` for HTML."""
    if isinstance(indent, int) and indent > LARGEST_INDENT:
        raise SecurityError(f"an indent of {indent} is not allowed in a chat template")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _Dict:
    """`dict()` and `dict.fromkeys()`, and nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    @staticmethod
    def fromkeys(*args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore, which reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self, so that `namespace(self=...)` works
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the namespace attribute {name!r} begins with an underscore")


FILTERS: dict[str, Callable[..., Any]] = {"tojson": _to_json}
GLOBALS: dict[str, Any] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "dict": _Dict(),
    "namespace": _Namespace,
}
