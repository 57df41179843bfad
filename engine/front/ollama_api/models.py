"""What ollama's interface tells of a model, from the files of its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import FreetokenError
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.ftw.opening import open_model
from engine.text.folder import read_text_files
from engine.text.text import Text


def details(folder: Path) -> Mapping[str, Any]:
    """Family, parameters and codec; nothing of a model that cannot be opened."""
    empty = {"parent_model": "", "format": "ftw", "family": "", "families": [], "parameter_size": ""}
    try:
        manifest = open_model(folder).manifest
    except FreetokenError:
        return {**empty, "quantization_level": ""}
    family = str(manifest.spec["family"])
    codecs = sorted({field.shape.codec for bank in manifest.banks for field in bank.fields if field.shape.rows > 1})
    codecs = codecs or sorted({info.shape.codec for info in manifest.dense.values() if not info.shape.vector})
    return {**empty, "family": family, "families": [family], "quantization_level": "+".join(codecs)}


def digest(folder: Path) -> str:
    """Of the manifest, which has the hashes of all weights."""
    return hashlib.sha256((folder / MANIFEST_NAME).read_bytes()).hexdigest()


def template(folder: Path) -> str:
    """The chat template, in which clients look for tools; it is Jinja's, not Go's. "" for a model without one."""
    try:
        return read_text_files(folder).templates.get("default", "")
    except FreetokenError:
        return ""


def capabilities(folder: Path) -> list[str]:
    """What a model can do, by its chat template."""
    try:
        form = Text.load(folder).answer_format(with_tools=True)
    except FreetokenError:
        return ["completion"]
    calls = form.calls is not None or form.channels is not None
    thinks = form.thought is not None or form.channels is not None
    return ["completion", *["tools"] * calls, *["thinking"] * thinks]
