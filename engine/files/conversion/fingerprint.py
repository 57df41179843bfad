"""What must be the same for a conversion to go on where it stopped."""

from __future__ import annotations

import json
from typing import Any

import xxhash

from engine import __version__
from engine.files.conversion.job import Job
from engine.files.conversion.partial import JOURNAL_VERSION


def fingerprint(job: Job) -> dict[str, Any]:
    """JSON values for the first line of a journal: the source, what is made of it, and how its bytes are read.

    How they are read follows from the config as well as from the tensors: it settles what quantised tensors leave open.
    """
    return {
        "journal": JOURNAL_VERSION,  # first, in every version: a folder is known by it
        "tool": __version__,
        "source": [list(file.identity) for file in job.checkpoint.files],
        "settings": json.loads(json.dumps(job.recipe.settings)),
        "spec": _digest(job.spec.to_json()),
        "config": _digest(job.checkpoint.config),
        "plan": _digest_of_plan(job),
    }


def _digest(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def _digest_of_plan(job: Job) -> str:
    """Of every item: its name and place, the shapes and codecs it gets, and the tensors and forms it is read from."""
    hasher = xxhash.xxh3_128()
    for item in job.plan.items:
        hasher.update(repr((item.name, item.file, item.offset, item.size, item.reads, item.parts)).encode())
    for name, tensor in sorted(job.checkpoint.tensors.items()):
        hasher.update(repr((name, tensor.form, tuple(tensor.shape))).encode())
    return hasher.hexdigest()
