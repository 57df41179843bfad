"""`freetoken rm`."""

from __future__ import annotations

from engine.base.errors import BusyError, UsageError
from engine.base.units import format_size
from engine.files.store import Store
from freetoken_cli import options
from freetoken_cli.client import Front
from freetoken_cli.front_process import health
from freetoken_cli.options import Models, NoColor, Quiet, Yes
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken rm demo", "asks first on a terminal"),
    ("freetoken rm demo other --yes", "does not ask"),
    ("freetoken list", "shows what can be removed, unfinished downloads too"),
)


def command(models: Models, yes: Yes = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """Remove models that are not loaded from the store, and print the name of each.

    What an unfinished pull or conversion of that name has left goes too.
    """
    output = Output.create(quiet=quiet, no_color=no_color)
    paths = options.paths()
    store = Store(paths.store)
    sizes: dict[str, int] = {}
    for entry in store.entries():  # an unfinished one may lie beside a finished one of the same name
        sizes[entry.name] = sizes.get(entry.name, 0) + entry.size
    for model in models:
        if model not in sizes:
            store.get(model)
    loaded = {state.name for state in Front(paths.socket).models()} if health(paths.socket) is not None else set()
    for model in models:
        if model in loaded:
            raise BusyError(f"{model} is loaded.", f"Unload it first: freetoken stop {model}")
    size = sum(sizes.get(model, 0) for model in set(models))
    if not output.confirm(f"Remove {', '.join(models)} ({format_size(size)})?", yes):
        raise UsageError("Nothing was removed.", "Answer y, or give --yes.")
    for model in dict.fromkeys(models):
        freed = store.remove(model)
        output.note(f"{format_size(freed)} freed.")
        output.line(model)
