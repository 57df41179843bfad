"""Parse, dispatch, and turn whatever happens into an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from freetoken_cli import __version__
from freetoken_cli.failures import (
    make_streams_bear_all_text,
    open_missing_streams,
    report,
    silence_broken_streams,
)
from freetoken_cli.options import NoColor
from freetoken_cli.output import naming_stdout
from freetoken_cli.tree import Root, short_help


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    no_color: NoColor = False,
) -> None:
    """Run Mixture-of-Experts models on your own machine, from the terminal."""
    if version:
        sys.stdout.write(f"freetoken {__version__}\n")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        sys.stdout.write(short_help() + "\n")


def build() -> Any:
    """The command tree. No command's module is imported yet."""
    app = typer.Typer(
        cls=Root,
        name="freetoken",
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _terminated(signum: int, frame: FrameType | None) -> None:
    # SIGTERM unwinds like Ctrl-C does, so that children, sockets and half files are cleaned up on the way out.
    raise SystemExit(128 + signum)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code: 0, 1 failed, 2 usage, 3 not found, 4 does not fit, 5 network, 130.

    SIGTERM raises SystemExit with 143 out of it.
    """
    args = list(arguments)
    open_missing_streams()
    make_streams_bear_all_text()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = build().main(args, prog_name="freetoken", standalone_mode=False)
        with naming_stdout():
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        return report(error, sys.stderr, no_color="--no-color" in args)
    finally:
        silence_broken_streams()
