"""`freetoken ps`."""

from __future__ import annotations

import time
from typing import Any

from engine.base.units import format_size
from freetoken_cli import options
from freetoken_cli.client import time_left
from freetoken_cli.loaded import loaded_models
from freetoken_cli.options import Json, NoColor, Quiet
from freetoken_cli.output import Column, Output

EXAMPLES = (
    ("freetoken ps", "models that are loaded now"),
    ("freetoken ps --json", "the same for a script"),
    ("freetoken ps -q | xargs -r freetoken stop", "unload all of them"),
)


def _share(value: Any) -> str:
    return "-" if value is None else f"{value * 100:.0f}"


def _until(value: Any) -> str:
    return time_left(value, time.time())


COLUMNS = (
    Column("NAME", "name"),
    Column("SIZE", "size", format_size, right=True),
    Column("DEVICE", "device"),
    Column("EXPERTS%", "experts", _share, right=True),
    Column("HIT%", "hit_rate", _share, right=True),
    Column("KV", "kv_tokens", right=True),
    Column("CONTEXT", "context", right=True),
    Column("UNTIL", "until", _until),
)


def command(json: Json = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """List the models that are loaded, with the memory they hold and when they leave it."""
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    states = loaded_models(options.paths().socket)
    output.listing("models", COLUMNS, [state.to_json() for state in states])
    if not states and not json:
        output.note("Nothing is loaded. freetoken run MODEL loads a model.")
