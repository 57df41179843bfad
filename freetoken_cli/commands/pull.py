"""`freetoken pull`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.files.store import Store
from freetoken_cli import options
from freetoken_cli.options import Json, NoColor, Yes
from freetoken_cli.output import Output
from freetoken_cli.pulling import plan_pull, pull_into_store

EXAMPLES = (
    ("freetoken pull demo", "a model of the catalogue"),
    ("freetoken pull ./Qwen3-30B-A3B", "a safetensors folder"),
    ("freetoken pull model.gguf --name mine", "a GGUF file, under a name of your own"),
    ("freetoken pull demo --dry-run", "what it takes, without doing it"),
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A name of the catalogue, a model folder, a GGUF file.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="State sizes and fit; fetch and write nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a model that is there.")]

Quiet = Annotated[bool, options.quiet("Print the name alone: no plan, no progress.")]


def command(
    source: Source,
    name: Name = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Put a model into the store: fetched if need be, checked, converted to FTW.

    Stopped at any moment, the same command goes on where it was. Prints the model's name.
    """
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    store = Store(options.paths().store)
    if dry_run:
        plan = plan_pull(source, store, name, force)
        if json:
            output.document(plan.to_json())
        else:
            output.line(plan.name if quiet else plan.sentence())
        if not plan.fits:
            raise typer.Exit(4)
        return
    plan, folder = pull_into_store(source, store, output, name, force)
    if json:
        output.document({"name": folder.name, "folder": str(folder), "present": plan.present})
    else:
        output.line(folder.name)
