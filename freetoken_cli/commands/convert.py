"""`freetoken convert`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from engine.base.errors import UsageError
from engine.base.paths import typed_path
from freetoken_cli import options
from freetoken_cli.interrupts import interruptible
from freetoken_cli.options import ExpertCodec, Json, NoColor
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken convert ./checkpoint ./model.ftw", "from a folder to a folder"),
    ("freetoken convert model.gguf --name mine", "into the store"),
    ("freetoken convert ./checkpoint ./small.ftw --expert-codec mxfp4", "experts in 4 bits, with the error it costs"),
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A safetensors folder or a GGUF file.")]
Destination = Annotated[
    str | None,
    typer.Argument(metavar="DEST", help="The folder to write; the store without one.", show_default=False),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name in the store.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Quiet = Annotated[bool, options.quiet("Print the folder alone: no progress.")]


def command(
    source: Source,
    dest: Destination = None,
    name: Name = None,
    force: Force = False,
    expert_codec: ExpertCodec = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Convert a checkpoint into an FTW folder; weights keep their codec unless --expert-codec gives experts another.

    Memory is bounded whatever the model's size. Stopped at any moment, the same command goes on in mid-file. Prints
    the folder.
    """
    from engine.files.conversion.convert import convert
    from engine.files.conversion.job import Recipe
    from engine.files.conversion.partial import partial_folder
    from engine.files.pulling.repository import CONVERT
    from engine.files.pulling.target import store_name
    from engine.files.store import Store
    from engine.text.gguf_tokenizer import write_tokenizer
    from freetoken_cli.phases import Phases, conversion_record

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    if dest is not None and name is not None:
        raise UsageError("DEST and --name both say where to write.", "Give one of them.")
    if dest == "":  # an unset variable of a script, rather than the wish to write into the store
        raise UsageError("DEST is empty.", "Name the folder to write, or leave DEST out to write into the store.")
    checkpoint = typed_path(source)
    if dest is None:
        folder = Store(options.paths().store).destination(name or store_name(checkpoint))
    else:
        folder = typed_path(dest)

    def kept() -> str:
        if partial_folder(folder).exists():
            return "What was converted is kept: run the same command to go on."
        return "Nothing was converted yet."

    with interruptible(kept), Phases(output, source) as phases:
        done = convert(
            checkpoint,
            folder,
            write_tokenizer=write_tokenizer,
            progress=partial(phases, CONVERT),
            recipe=Recipe(expert_codec=expert_codec),
            force=force,
            removal=f"freetoken rm {folder.name}" if dest is None else "",
        )
    for note in done.notes():
        output.note(note)
    if json:
        output.document({"folder": str(folder), **conversion_record(done)})
    else:
        output.line(str(folder))
