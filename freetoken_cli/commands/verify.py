"""`freetoken verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from engine.base.errors import CorruptFileError
from engine.base.units import format_size
from freetoken_cli import options
from freetoken_cli.options import Folder, Json, NoColor
from freetoken_cli.output import Output

if TYPE_CHECKING:
    from engine.files.ftw.verify import Problem

EXAMPLES = (
    ("freetoken verify demo", "a model of the store"),
    ("freetoken verify ./model.ftw", "any FTW folder"),
)
_SHOWN = 20  # a disk that fails breaks thousands of records

Quiet = Annotated[bool, options.quiet("Print the name alone, if every byte is right.")]


def command(model: Folder, json: Json = False, quiet: Quiet = False, no_color: NoColor = False) -> None:
    """Check every byte of a model against the hashes that were written with it.

    The exit code is 1 when something was altered; each place is named with the hash it should have and the one it has.
    """
    from engine.files.ftw.verify import verify
    from engine.files.store import Store
    from freetoken_cli.folders import model_folder

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    folder = model_folder(Store(options.paths().store), model)
    with output.phase(f"Checking {model}") as progress:
        report = verify(folder, progress)
    if json:
        output.document(
            {"model": model, "bytes": report.checked_bytes, "problems": list(map(_record, report.problems))}
        )
    elif not report.problems:
        output.line(model if quiet else f"{model}: {format_size(report.checked_bytes)} are as they were written.")
    if report.problems:
        sentences = [problem.sentence() for problem in report.problems[:_SHOWN]]
        if len(report.problems) > _SHOWN:
            sentences.append(f"And {len(report.problems) - _SHOWN} more places; --json lists all of them.")
        raise CorruptFileError("\n".join(sentences), "Get it again: freetoken pull, or convert, with --force.")


def _record(problem: Problem) -> dict[str, Any]:
    """Stable keys of one problem; `found` and `unreadable` are null where they do not apply."""
    return {
        "file": str(problem.file),
        "start": problem.start,
        "stop": problem.stop,
        "what": problem.what,
        "expected": problem.expected,
        "found": problem.found or None,
        "unreadable": problem.unreadable or None,
    }
