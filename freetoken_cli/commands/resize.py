"""`freetoken resize`."""

from __future__ import annotations

import shlex
from typing import Annotated

from engine.base.errors import UsageError
from freetoken_cli import options
from freetoken_cli.client import Front, ModelState, resize_line
from freetoken_cli.loaded import require_loaded
from freetoken_cli.options import Experts, Json, Kv, NoColor, Stored
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken resize demo --kv 32k", "room for 32768 tokens of context"),
    ("freetoken resize demo --kv 512M", "512 MiB of context memory"),
    ("freetoken resize demo --experts 2G --kv 32k", "move memory between experts and context"),
)

Quiet = Annotated[bool, options.quiet("Print the name alone.")]


def command(
    model: Stored,
    kv: Kv = None,
    experts: Experts = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Move memory of a loaded model while it answers. Running requests go on; if it cannot be done, nothing changes."""
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    # Only what is typed counts here: a default in the environment is no wish to resize.
    config = options.settings(paths, kv=kv, experts=experts)
    if kv is None and experts is None:
        raise UsageError(
            "Nothing to change.", f"Give --kv or --experts: freetoken resize {shlex.quote(model)} --kv 32k"
        )
    require_loaded(
        [model], paths.socket, f"Load it with the size you want: freetoken run {shlex.quote(model)} --kv 32k"
    )
    answer = Front(paths.socket).resize(
        model, config.kv if kv is not None else None, config.experts if experts is not None else None
    )
    for note in answer["notes"]:
        output.warn(note)
    if json:
        before, after = ModelState.from_json(answer["before"]), ModelState.from_json(answer["after"])
        output.document({"before": before.to_json(), "after": after.to_json(), "seconds": answer["seconds"]})
    else:
        output.line(model if quiet else resize_line(answer))
