"""`freetoken doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from engine.base.errors import UsageError
from engine.base.hardware import read_hardware
from freetoken_cli import options
from freetoken_cli.checks import CHECKS, FAIL, OK, Finding, Surroundings
from freetoken_cli.options import Json, NoColor
from freetoken_cli.output import Column, Output
from freetoken_cli.terminal import printable, styled

EXAMPLES = (
    ("freetoken doctor", "what this machine and this installation can do"),
    ("freetoken doctor ./checkpoint", "what a checkpoint needs and what is missing"),
    ("freetoken doctor owner/name", "the same of a model of the Hub, of which headers alone are fetched"),
    ("freetoken doctor --families --json", "the model families that this release knows"),
)

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A safetensors folder, a GGUF file or a model of the Hub to look at.",
        show_default=False,
    ),
]
Families = Annotated[bool, typer.Option("--families", help="List the families, the codecs each is tested in, and how.")]

FAMILY_COLUMNS = (
    Column("FAMILY", "name"),
    Column("TESTED IN", "codecs", ", ".join),
    Column("HOW", "tested"),
)

Quiet = Annotated[bool, options.quiet("Print only what will not work.")]


def command(
    checkpoint: Source = None,
    families: Families = False,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Check this machine and this installation, or what a checkpoint needs and whether it can be run here.

    The exit code is 0 when all will work, 1 when something will not, 3 when there is no such checkpoint, 5 when the Hub
    cannot be reached.
    """
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    if families and checkpoint is not None:
        raise UsageError("--families lists what this release knows, and takes no checkpoint.", "Leave one of them out.")
    if families:
        from freetoken_cli.families import family_records

        output.listing("families", FAMILY_COLUMNS, family_records())
        return
    if checkpoint is not None:
        from freetoken_cli.examination import examine

        found = examine(checkpoint, options.paths(), output)
        findings, document = list(found.findings), found.to_json()
    else:
        around = Surroundings(options.paths(), read_hardware())
        findings = [check(around) for check in CHECKS]
        document = {"checks": [asdict(finding) for finding in findings]}
    _print(findings, document, output)
    if any(finding.status == FAIL for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding], document: dict[str, Any], output: Output) -> None:
    colours = {OK: "32", FAIL: "1;31"}
    if output.as_json:
        output.document(document)
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        if output.quiet and finding.status != FAIL:
            continue
        mark = styled(f"{finding.status:<4}", colours.get(finding.status, "33"), output.colour_out)
        output.line(f"{mark}  {finding.name:<{width}}  {printable(finding.detail)}")
        if finding.remedy and not output.quiet:
            output.line(f"{'':<{width + 8}}{printable(finding.remedy)}")
