"""`freetoken pull`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.base.errors import UsageError
from freetoken_cli import options
from freetoken_cli.options import ExpertCodec, Json, NoColor
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken pull demo", "a name of the catalogue; freetoken list --catalogue shows them"),
    ("freetoken pull Qwen/Qwen3-0.6B", "any model of the Hugging Face Hub whose family runs"),
    ("freetoken pull some-owner/Model-GGUF --file Q4_K_M", "one GGUF of a repository that holds several"),
    ("freetoken pull ./Qwen3-30B-A3B", "a safetensors folder; a GGUF file likewise"),
    ("freetoken pull gpt-oss-20b --dry-run", "what it takes, without doing it"),
    ("freetoken pull qwen3-30b-a3b --expert-codec mxfp4", "experts in 4 bits, with the error it costs"),
)

What = Annotated[
    str | None,
    typer.Argument(
        metavar="WHAT",
        help="A name of the catalogue, owner/name of the Hugging Face Hub, a model folder, a GGUF file.",
        show_default=False,
        autocompletion=options.complete_model,
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it.", show_default=False)]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="REV", help="A branch, tag or commit of the repository; main.", show_default=False
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--file", metavar="NAME", help="Which GGUF of the repository; a piece of its name will do.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="State sizes and fit; keep nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a model that is there.")]
# scripts give it to every command alike
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Changes nothing: a pull never asks.")]
Quiet = Annotated[bool, options.quiet("Print the name alone: no forecast, no progress.")]


def command(
    what: What = None,
    name: Name = None,
    revision: Revision = None,
    file: File = None,
    expert_codec: ExpertCodec = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Put a model into the store: fetched if need be, checked, converted to FTW.

    Weights keep their codec unless --expert-codec gives experts another. Says first what it takes. Stopped at any
    moment, the same command goes on where it was. Prints the model's name.
    """
    from engine.files.pulling.catalogue import WHERE_TO_LOOK
    from engine.files.store import Store
    from freetoken_cli.phases import conversion_record
    from freetoken_cli.pulling import Wanted, forecast, pull_into_store

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    if not what:
        raise UsageError("Say what to pull.", WHERE_TO_LOOK)
    store = Store(options.paths().store)
    wanted = Wanted(what, name, revision, file, expert_codec, force)
    if dry_run:
        found = forecast(wanted, store, output)
        if json:
            output.document(found.to_json())
        else:
            output.line(found.name if quiet else found.sentence())
        if not found.fits:
            raise typer.Exit(4)
        return
    pulled = pull_into_store(wanted, store, output)
    name = pulled.folder.name
    if json:
        record = {"name": name, "folder": str(pulled.folder), "present": pulled.converted is None}
        output.document({**record, **conversion_record(pulled.converted)})
    else:
        output.line(name)
