"""The support matrix: family by codec and device, out of the report of a test run."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import wrap

from engine.base.errors import UnsupportedError
from engine.files.codecs import CODECS
from engine.program.device.triton_mixers import refuse_what_has_no_kernels
from engine.program.lowering.lower import lower
from engine.spec.families import FAMILIES
from tests.parity.recording import FAMILY_OF
from tests.parity.sample import specs

from .blocks import README, SUPPORT, table, write_block

MATRIX, LIST = "matrix", "families"
TITLES = ["family", *CODECS, "cuda"]
MARKS = BOTH, CPU_ALONE, RUNS, NOT_YET = "T", "c", "r", "-"


def write_matrix(report: Path) -> None:
    """Write the matrix, and the README's list of families. `report` is what --support-report wrote."""
    passed = {tuple(entry) for entry in json.loads(report.read_text())}
    rows = [[name, *(_cell(passed, name, codec) for codec in CODECS), _on_cuda(name)] for name in sorted(FAMILIES)]
    write_block(SUPPORT, MATRIX, table(TITLES, rows))
    write_block(README, LIST, _families())


def _cell(passed: set[tuple[str, ...]], family: str, codec: str) -> str:
    devices = [device for device in ("cpu", "sim") if (family, codec, device) in passed]
    return {("cpu", "sim"): BOTH, ("cpu",): CPU_ALONE}.get(tuple(devices), RUNS)


def _on_cuda(family: str) -> str:
    """Whether any of the family's cases could be loaded on a GPU; none has been tested on one."""
    for case, name in FAMILY_OF.items():
        if name == family:
            try:
                refuse_what_has_no_kernels(lower(specs()[case]))
            except UnsupportedError:
                continue
            return RUNS
    return NOT_YET


def _families() -> str:
    sparse = sorted(name for name, family in FAMILIES.items() if family.moe is not None)
    dense = sorted(name for name, family in FAMILIES.items() if family.moe is None)
    text = f"{', '.join(sparse)}; dense: {', '.join(dense)}."
    return "".join(f"  {line}\n" for line in wrap(text, 118, break_on_hyphens=False))
