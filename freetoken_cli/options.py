"""The flags that several commands share, so that each means the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from engine.base.config import DEVICES, Config, read_config_file, resolve, setting
from engine.base.paths import Paths


def complete_model(incomplete: str) -> list[str]:
    """What a shell completes a model's name to: models of the store, and those of the catalogue that run."""
    from freetoken_cli.models import names_to_pull

    return sorted(name for name in {*_stored(), *names_to_pull()} if name.startswith(incomplete))


def complete_stored(incomplete: str) -> list[str]:
    """What a shell completes the name of a model to that has to be there already."""
    return [name for name in _stored() if name.startswith(incomplete)]


def _stored() -> list[str]:
    from engine.files.store import Store

    return Store(paths().store).names()


def _expert_codecs() -> tuple[str, ...]:
    from engine.files.conversion.requantise import ENCODED

    return ENCODED


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell completes a value to that is one of `names`, which are asked for only then."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _setting(name: str, metavar: str, values: Iterable[str] = ()) -> Any:
    """The flag of a setting; its text is parsed by `settings`, where every layer is parsed alike."""
    item = setting(name)
    complete = complete_from(lambda: values) if values else None
    return typer.Option(item.flag, metavar=metavar, help=item.help, show_default=False, autocompletion=complete)


def plain(flag: str, metavar: str, help: str) -> Any:
    """A flag whose text the command itself reads."""
    return typer.Option(flag, metavar=metavar, help=help, show_default=False)


def quiet(help: str) -> Any:
    """The flag `-q`: what a command still prints under it, since notes and progress are gone under each."""
    return typer.Option("--quiet", "-q", help=help)


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.", autocompletion=complete_model)]
Stored = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.", autocompletion=complete_stored)]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model's name, or the path of an FTW folder.", autocompletion=complete_stored
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
Quiet = Annotated[bool, quiet("Print names only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print statistics to stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours.")]

Device = Annotated[str | None, _setting("device", "auto|cpu|cuda|sim", DEVICES)]
Experts = Annotated[str | None, _setting("experts", "SIZE|PCT%|SLOTS")]
Context = Annotated[str | None, _setting("context", "N")]
Kv = Annotated[str | None, _setting("kv", "TOKENS|SIZE|PCT%")]
Threads = Annotated[str | None, _setting("threads", "N")]
MaxTokens = Annotated[str | None, _setting("max_tokens", "N")]
Host = Annotated[str | None, _setting("host", "ADDRESS")]
Port = Annotated[str | None, _setting("port", "N")]
ApiKey = Annotated[str | None, _setting("api_key", "KEY")]
AllowedHosts = Annotated[str | None, _setting("allowed_hosts", "NAME,...")]
AllowedOrigins = Annotated[str | None, _setting("allowed_origins", "URL,...")]
KeepAlive = Annotated[str | None, _setting("keep_alive", "DURATION")]

ExpertCodec = Annotated[
    str | None,
    typer.Option(
        "--expert-codec",
        metavar="CODEC",
        help="Put the experts into mxfp4, nvfp4 or q8_0, which loses accuracy.",
        show_default=False,
        autocompletion=complete_from(_expert_codecs),
    ),
]

Greedy = Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")]
Seed = Annotated[str | None, plain("--seed", "N", "Make sampling repeatable.")]
Temperature = Annotated[str | None, plain("--temperature", "X", "0 is greedy; higher is wilder.")]
TopP = Annotated[str | None, plain("--top-p", "X", "Keep the likeliest tokens up to this sum.")]
TopK = Annotated[str | None, plain("--top-k", "N", "Keep the N likeliest tokens.")]
MinP = Annotated[str | None, plain("--min-p", "X", "Keep tokens at least this likely, beside the likeliest.")]
ThinkingBudget = Annotated[str | None, plain("--thinking-budget", "N", "Think for at most N tokens, then answer.")]


def paths() -> Paths:
    """This user's places on disk."""
    return Paths.from_environment(os.environ)


def settings(places: Paths, **flags: str | None) -> Config:
    """The settings in force: `flags` as typed, then the environment, then the config file, then defaults."""
    return resolve(flags, os.environ, read_config_file(places.config), str(places.config))
