"""Where a converted model comes from, as its manifest tells it. What is not told, or told in another way, is absent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from engine.files.hub.address import HubRepo
from engine.files.pulling.catalogue import Model, Source

_AT_COMMIT = re.compile(r"(.+)@([0-9a-f]{40})", re.ASCII)


@dataclass(frozen=True)
class Origin:
    """The source of a model: a folder, a file, or a repository of the Hub at a commit. "" is what is not known."""

    source: str
    revision: str
    licence: str


def find_origin(provenance: Mapping[str, Any], catalogue: Mapping[str, Model]) -> Origin:
    """Reads it from a manifest. The licence is the catalogue's, for a model that was made of what an entry names."""
    settings = provenance.get("settings")
    upcycled = isinstance(settings, dict) and "upcycle" in settings
    source, revision = _text(provenance, "source"), ""
    if match := _AT_COMMIT.fullmatch(source):
        source, revision = match.groups()
    for model in catalogue.values():
        if _is_source(model.source, source) and (model.upcycle is not None) == upcycled:
            return Origin(source, revision, model.licence)
    return Origin(source, revision, "")


def _is_source(source: Source, name: str) -> bool:
    """Whether a conversion of `source` calls it `name`."""
    if isinstance(source, HubRepo):
        return name == (f"{source.repo}/{source.file}" if source.file else source.repo)
    return name == PurePosixPath(source.file).stem


def origin_rows(origin: Origin, provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and value of what is known, for people."""
    rows = [
        ("source", origin.source),
        ("revision", origin.revision),
        ("licence", origin.licence),
        ("changed", _changes(provenance)),
        ("left out", left_out_line(provenance)),
        ("made by", _text(provenance, "tool")),
    ]
    return [(label, value) for label, value in rows if value]


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    return value if isinstance(value, str) else ""


def _changes(provenance: Mapping[str, Any]) -> str:
    """What a conversion did to the weights, and what it cost."""
    changes = []
    settings = provenance.get("settings")
    if isinstance(settings, dict) and isinstance(settings.get("upcycle"), dict):
        upcycle = settings["upcycle"]
        changes.append(f"made sparse: {upcycle.get('experts')} experts of one, {upcycle.get('top_k')} a token")
    requantised = provenance.get("requantised")
    if isinstance(requantised, dict) and requantised.get("tensors"):
        error, worst = requantised.get("error"), requantised.get("worst_error")
        if isinstance(error, float) and isinstance(worst, float):
            changes.append(
                f"experts put into {requantised.get('codec')}: relative error (rms) {error:.2%}, "
                f"at worst {worst:.2%} ({requantised.get('worst_tensor')})"
            )
    return "; ".join(changes)


def left_out_line(provenance: Mapping[str, Any]) -> str:
    """Tensors of the source that have no place in the model, by purpose; "" for none."""
    left_out = provenance.get("left_out")
    if not isinstance(left_out, dict):
        return ""
    return ", ".join(f"{count} {purpose} tensors" for purpose, count in left_out.items())
