"""The verbs as a table, and the group that loads a verb's module only when it is used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from freetoken_cli.helppage import (
    ALWAYS,
    HUB,
    Example,
    Page,
    UsageException,
    Variable,
    did_you_mean,
    parsed,
    write_examples,
    write_section,
)
from freetoken_cli.interrupts import Interrupted


@dataclass(frozen=True)
class Verb:
    """A command: the module `freetoken_cli.commands.<module>` holds its function `command` and its `EXAMPLES`.

    `variables` of the environment are told in its help beside those of its settings.
    """

    name: str
    module: str
    summary: str
    variables: tuple[Variable, ...] = ()


VERBS: tuple[Verb, ...] = (
    Verb("run", "run", "Talk to a model, or answer one prompt.", HUB),
    Verb("pull", "pull", "Put a model into the store.", HUB),
    Verb("list", "list", "List the models in the store."),
    Verb("show", "show", "Show what a model is made of."),
    Verb("rm", "rm", "Remove models from the store."),
    Verb("serve", "serve", "Serve models over HTTP (OpenAI's, Anthropic's and ollama's APIs).", HUB),
    Verb("launch", "launch", "Start a coding agent that asks a model of yours.", HUB),
    Verb("ps", "ps", "List the models that are loaded."),
    Verb("stop", "stop", "Unload models, or stop the background server."),
    Verb("resize", "resize", "Move memory of a loaded model, live."),
    Verb("convert", "convert", "Convert a checkpoint into an FTW folder."),
    Verb("verify", "verify", "Check every byte of a model against its hashes."),
    Verb("probe", "probe", "Measure this machine and write its profile."),
    Verb("bench", "bench", "Measure a model's speed on this machine."),
    Verb("replay", "replay", "Replay recorded routing through cache policies."),
    Verb("doctor", "doctor", "Check this machine and this installation."),
    Verb("version", "version", "Print the version."),
)

# What these are called elsewhere; difflib cannot know.
ALIASES = {
    "ls": "list", "models": "list", "remove": "rm", "delete": "rm", "del": "rm", "uninstall": "rm",
    "chat": "run", "ask": "run", "generate": "run", "start": "serve", "server": "serve", "download": "pull",
    "get": "pull", "fetch": "pull", "install": "pull", "add": "pull", "import": "pull", "create": "convert",
    "info": "show", "inspect": "show", "describe": "show", "status": "ps", "top": "ps", "kill": "stop",
    "unload": "stop", "check": "doctor", "measure": "probe", "benchmark": "bench", "help": "--help",
}  # fmt: skip

EXAMPLES: tuple[Example, ...] = (
    ("freetoken run demo", "talk to a small model, which is fetched the first time"),
    ('git diff | freetoken run demo "Write a commit message"', "use it in a pipe"),
    ("freetoken serve demo", "an OpenAI-compatible server on this machine"),
)


def load(verb: Verb) -> Any:
    """Import the verb's module and build its command."""
    module = importlib.import_module(f"freetoken_cli.commands.{verb.module}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(verb.name, cls=Page, short_help=verb.summary)(module.command)
    built = typer.main.get_command(app)
    built.name = verb.name
    assert isinstance(built, Page)
    built.examples = module.EXAMPLES
    built.variables = verb.variables
    return built


class Root(TyperGroup):
    """`freetoken` itself: its help needs the table above and no command's module."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return next((load(verb) for verb in VERBS if verb.name == cmd_name), None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise UsageException(f"{args[0]!r} is no command.{did_you_mean(args[0], known, ALIASES)}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return parsed(self, ctx, partial(super().parse_args, ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # of which the parser would make an exit code without a word
            raise Interrupted from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_examples(formatter, EXAMPLES)
        formatter.write("\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        write_section(formatter, "Environment", ALWAYS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        write_section(formatter, "Commands", [(verb.name, verb.summary) for verb in VERBS])


def short_help() -> str:
    """What a bare `freetoken` prints."""
    width = max(len(line) for line, _ in EXAMPLES)
    lines = [f"  {line:<{width}}  {meaning}" for line, meaning in EXAMPLES]
    verbs = ", ".join(verb.name for verb in VERBS)
    return "\n".join(
        [
            "freetoken runs Mixture-of-Experts models on your own machine.",
            "",
            "Examples:",
            *lines,
            "",
            f"Commands: {verbs}.",
            "freetoken --help tells more; freetoken COMMAND --help tells about one.",
        ]
    )
