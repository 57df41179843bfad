"""`freetoken rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.base.errors import UsageError
from engine.base.units import format_size
from engine.files.store import PARTIAL, Store
from freetoken_cli import options
from freetoken_cli.loaded import require_unloaded
from freetoken_cli.options import NoColor, Quiet, Yes
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken rm demo", "asks first on a terminal"),
    ("freetoken rm demo other --yes", "does not ask"),
    ("freetoken rm --unfinished", "what half-done pulls and conversions have left, of all models"),
    ("freetoken list", "shows what can be removed, unfinished downloads too"),
)

Removed = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...", help="Names of models.", show_default=False, autocompletion=options.complete_stored
    ),
]
Unfinished = Annotated[
    bool, typer.Option("--unfinished", help="Remove only what is unfinished: of MODEL..., or without names of all.")
]


def command(
    models: Removed = None,
    unfinished: Unfinished = False,
    yes: Yes = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Remove models that are not loaded from the store, and print the name of each.

    What an unfinished pull or conversion of that name has left goes too; with --unfinished it goes alone.
    """
    output = Output.create(quiet=quiet, no_color=no_color)
    paths = options.paths()
    store = Store(paths.store)
    sizes: dict[str, int] = {}
    for entry in store.entries():  # an unfinished one may lie beside a finished one of the same name
        if entry.state == PARTIAL or not unfinished:
            sizes[entry.name] = sizes.get(entry.name, 0) + entry.size
    names = list(dict.fromkeys(models or (sizes if unfinished else ())))
    if not names:
        if unfinished:
            output.note("Nothing is unfinished.")
            return
        raise UsageError("Name the models to remove, or give --unfinished.", "See freetoken rm --help.")
    for name in names:
        if name not in sizes:
            store.require_unfinished(name) if unfinished else store.get(name)
    loadable = [] if unfinished else names
    require_unloaded(loadable, paths.socket)
    size = format_size(sum(sizes.get(name, 0) for name in names))
    what = f"what is unfinished of {', '.join(names)}" if unfinished else ", ".join(names)
    if not output.confirm(f"Remove {what} ({size})?", yes):
        raise UsageError("Nothing was removed.", "Answer y, or give --yes.")
    require_unloaded(loadable, paths.socket)  # a question may have waited for long
    for name in names:
        freed = store.remove(name, unfinished_only=unfinished)
        output.note(f"{format_size(freed)} freed.")
        output.line(name)
