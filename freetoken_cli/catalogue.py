"""The catalogue as people see it: `freetoken list --catalogue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.base.units import format_size
from engine.files.hub.address import HubRepo
from engine.files.pulling.catalogue import Model, Source, read_catalogue
from freetoken_cli.output import Column, Output

_UNKNOWN = "-"


def list_catalogue(output: Output) -> None:
    """Print every model that has a name, and which of them this release runs."""
    models = read_catalogue().values()
    output.listing("catalogue", COLUMNS, [_record(model) for model in models])
    output.note(
        "SIZE is about what it takes on disk. freetoken pull NAME takes one in; owner/name takes any model of the "
        "Hugging Face Hub whose family runs."
    )


def format_count(count: int) -> str:
    """Parameters as model cards write them: `30.5B`, `400M`, `1T`."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def _shown(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A value of a column by `show`, or a dash for one that is not known."""
    return lambda value: show(value) if value else _UNKNOWN


COLUMNS = (
    Column("NAME", "name"),
    Column("SIZE", "disk", _shown(format_size), right=True),
    Column("PARAMETERS", "parameters", _shown(format_count), right=True),
    Column("ACTIVE", "active_parameters", _shown(format_count), right=True),
    Column("FORMAT", "format"),
    Column("LICENCE", "licence", _shown(str)),
    Column("RUNS", "runs", lambda runs: "yes" if runs else "not yet"),
)


def _record(model: Model) -> dict[str, Any]:
    """Stable keys for `list --catalogue --json`; null is what is not known. `disk` is `size`, else `download`."""
    return {
        "name": model.name,
        "description": model.description,
        "family": model.family,
        "runs": model.runs,
        "format": model.format,
        "licence": model.licence or None,
        "parameters": model.parameters or None,
        "active_parameters": model.active_parameters or None,
        "context": model.context or None,
        "download": model.download or None,
        "size": model.size or None,
        "disk": model.size or model.download or None,
        "memory": model.memory or None,
        "vram": model.vram or None,
        "source": _source(model.source),
        "sampling": dict(model.sampling),
    }


def _source(source: Source) -> dict[str, Any]:
    if isinstance(source, HubRepo):
        return {"kind": "huggingface", "repo": source.repo, "revision": source.revision, "file": source.file}
    return {"kind": "pypi", "package": source.package, "version": source.version, "file": source.file}
