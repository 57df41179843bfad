"""`freetoken stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.base.errors import UsageError
from freetoken_cli import options
from freetoken_cli.client import Front
from freetoken_cli.front_process import stop_front
from freetoken_cli.loaded import require_loaded
from freetoken_cli.options import NoColor, Quiet
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken stop demo", "unload one model"),
    ("freetoken stop --all", "unload everything and end the background server"),
)

LoadedModels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...", help="Names of loaded models.", show_default=False, autocompletion=options.complete_stored
    ),
]
All = Annotated[bool, typer.Option("--all", help="Unload everything, and end the background server.")]


def command(
    models: LoadedModels = None, everything: All = False, quiet: Quiet = False, no_color: NoColor = False
) -> None:
    """Unload models: their memory is free again, and the files stay in the store."""
    output = Output.create(quiet=quiet, no_color=no_color)
    paths = options.paths()
    if everything == bool(models):
        raise UsageError("Name the models to stop, or give --all.", "freetoken ps lists them.")
    if everything:
        output.note("The background server has ended." if stop_front(paths) else "No background server runs.")
        return
    names = list(dict.fromkeys(models or ()))
    require_loaded(names, paths.socket, "freetoken ps lists the models that are.")
    for model in names:
        for name in Front(paths.socket).stop(model):
            output.line(name)
