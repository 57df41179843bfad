"""How every command explains itself: examples first, then usage and options, environment variables last."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

from engine.base.config import SETTINGS
from engine.base.nearest import nearest
from freetoken_cli.terminal import may_colour, styled

# typer carries click inside itself in some releases and depends on it in others; BadParameter is public in both, and
# its base is the class of every usage error.
UsageException: type[Any] = typer.BadParameter.__bases__[0]

Example = tuple[str, str]  # a command line, and what it does
Variable = tuple[str, str]  # an environment variable, and what it does

ALWAYS: tuple[Variable, ...] = (
    ("FREETOKEN_STORE", "The folder that holds the models."),
    ("FREETOKEN_DEBUG", "1 shows the traceback of an error."),
    ("NO_COLOR", "Any value switches colours off."),
)

HUB: tuple[Variable, ...] = (
    ("HF_TOKEN", "The token for gated and private models of the Hugging Face Hub."),
    ("HF_ENDPOINT", "Another Hub."),
    ("HF_HOME", "Where the cache and the token of huggingface_hub are; what is cached is used."),
    ("HF_HUB_OFFLINE", "1 asks nothing of the Hub."),
)


class Page(TyperCommand):
    """A command whose help starts with `examples`.

    It ends with variables: those of its own settings, then `variables`, then those that always count.
    """

    examples: Sequence[Example] = ()
    variables: Sequence[Variable] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_examples(formatter, self.examples)
        formatter.write("\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        names = {param.name for param in self.params}
        own = [(item.variable, item.help) for item in SETTINGS if item.name in names]
        write_section(formatter, "Environment", [*own, *self.variables, *ALWAYS])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required, _ in self._arguments())]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(name, help) for name, _, help in self._arguments()]
        if arguments:
            write_section(formatter, "Arguments", arguments)
        flags = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        write_section(formatter, "Options", [record for flag in flags if (record := flag.get_help_record(ctx))])

    def _arguments(self) -> list[tuple[str, bool, str]]:
        """Name, whether it is required, and help of each argument."""
        arguments: list[Any] = [param for param in self.params if param.param_type_name == "argument"]
        return [(param.metavar, param.required, param.help or "") for param in arguments]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return parsed(self, ctx, partial(super().parse_args, ctx, args))


class AsTyped:
    """Hands a parameter's text to the command as it was typed."""

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        """The value itself; a list for a parameter that takes several."""
        if param.multiple or param.nargs == -1:
            return list(value or ())
        return value


def parsed(command: Any, ctx: Any, parse: Callable[[], list[str]]) -> list[str]:
    """What `parse` makes of the arguments of `command`, with its parameters as text; its errors name the command."""
    _keep_text(command.get_params(ctx))
    try:
        return parse()
    except UsageException as error:
        raise _with_suggestion(error, command, ctx) from error


def _keep_text(params: Sequence[Any]) -> None:
    """Let parameters come through as text or flags; commands read their text themselves.

    typer 0.29 would convert values through pydantic, whose import alone takes longer than a whole answer to
    `freetoken --help` may. Older ones have nothing to replace.
    """
    for param in params:
        if hasattr(param, "get_runtime_param"):
            param.get_runtime_param = AsTyped


def write_section(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A titled list of terms and what they mean."""
    formatter.write_paragraph()
    formatter.write(heading(title))
    formatter.indent()
    formatter.write_dl(rows)
    formatter.dedent()


def write_examples(formatter: Any, examples: Sequence[Example]) -> None:
    """Command lines with a word on each. They are never wrapped, so that they can be copied."""
    formatter.write(heading("Examples"))
    width = max((len(line) for line, _ in examples), default=0)
    for line, meaning in examples:
        formatter.write(f"  {line:<{width}}  {meaning}".rstrip() + "\n")


def heading(title: str) -> str:
    """A section's title, bold where stdout shows it."""
    return styled(f"{title}:", "1", may_colour(sys.stdout, os.environ, "--no-color" in sys.argv)) + "\n"


def _with_suggestion(error: Any, command: Any, ctx: Any) -> Any:
    """The same usage error with its command, and with the nearest flag of it when the flag is not known."""
    error.ctx = error.ctx or ctx
    # The class is private to whichever click typer uses; its name and field are the same in all of them.
    if type(error).__name__ != "NoSuchOption":
        return error
    typed = str(error.option_name)
    flags = [flag for param in command.get_params(ctx) for flag in param.opts if flag.startswith("--")]
    message = f"{ctx.command_path} has no flag {typed}."
    return UsageException(f"{message}{did_you_mean(typed, flags)}", ctx=ctx)


def did_you_mean(typed: str, known: Sequence[str], aliases: Mapping[str, str] | None = None) -> str:
    """ " Did you mean X?" for the nearest of `known`, or what people call it elsewhere; "" when nothing is near."""
    if aliases and typed.lower() in aliases:
        return f" Did you mean {aliases[typed.lower()]}?"
    close = nearest(typed, known)
    if not close and len(typed) >= 2:
        close = [name for name in known if name.lower().startswith(typed.lower())][:1]
    return f" Did you mean {' or '.join(close)}?" if close else ""
