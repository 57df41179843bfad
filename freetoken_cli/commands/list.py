"""`freetoken list`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from engine.base.units import format_duration, format_size
from engine.files.store import READY, Entry, Store
from freetoken_cli import options
from freetoken_cli.options import Json, NoColor, Quiet
from freetoken_cli.output import Column, Output

EXAMPLES = (
    ("freetoken list", "models in the store"),
    ("freetoken list --catalogue", "models that can be pulled by name, and what each takes"),
    ("freetoken list -q", "names only"),
    ("freetoken list --json", "for a script"),
)


def _age(modified: Any) -> str:
    seconds = max(0.0, time.time() - float(modified))
    if seconds < 60:
        return "just now"
    if seconds < 86400:
        return f"{format_duration(seconds // 60 * 60)} ago"
    return datetime.fromtimestamp(modified).strftime("%Y-%m-%d")


COLUMNS = (
    Column("NAME", "name"),
    Column("SIZE", "size", format_size, right=True),
    Column("FORMAT", "shown"),
    Column("MODIFIED", "unix", _age),
)


Catalogue = Annotated[
    bool, typer.Option("--catalogue", "--catalog", help="List the models that can be pulled by name.")
]


def command(catalogue: Catalogue = False, json: Json = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """List the models in the store, the unfinished and the damaged ones too."""
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    if catalogue:
        from freetoken_cli.catalogue import list_catalogue

        list_catalogue(output)
        return
    store = Store(options.paths().store)
    entries = store.entries()
    if quiet:
        entries = list({entry.name: entry for entry in entries}.values())  # one may be there and be pulled anew
    if json:
        output.document({"store": str(store.root), "models": [_record(entry) for entry in entries]})
        return
    output.listing(
        "models", COLUMNS, [{**_record(entry), "shown": _shown(entry), "unix": entry.modified} for entry in entries]
    )
    for entry in entries:
        if entry.problem:
            output.note(f"{entry.name}: {entry.problem}")
    if not entries:
        output.note("The store is empty. freetoken pull demo puts a small model into it.")


def _record(entry: Entry) -> dict[str, Any]:
    """Stable keys for `list --json`."""
    return {
        "name": entry.name,
        "size": entry.size,
        "format": entry.format or None,
        "modified": datetime.fromtimestamp(entry.modified, UTC).isoformat(timespec="seconds"),
        "state": entry.state,
        "problem": entry.problem or None,
        "folder": str(entry.folder),
    }


def _shown(entry: Entry) -> str:
    return entry.format if entry.state == READY else f"({entry.state})"
