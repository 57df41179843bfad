"""`freetoken version`."""

from __future__ import annotations

import platform

from freetoken_cli import __version__
from freetoken_cli.options import Json, NoColor
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken version", "the version"),
    ("freetoken version --json", "also Python's and the platform's"),
)


def command(json: Json = False, no_color: NoColor = False) -> None:
    """Print the version."""
    output = Output.create(as_json=json, no_color=no_color)
    if json:
        machine = {"python": platform.python_version(), "platform": platform.platform()}
        output.document({"freetoken": __version__, **machine})
    else:
        output.line(f"freetoken {__version__}")
