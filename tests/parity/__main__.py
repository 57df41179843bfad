"""`python -m tests.parity FAMILY`: how far every layer of a family is from transformers, and where that starts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from engine.spec.families import FAMILIES, find_family

from .cases import CASES
from .prepare import Prepared, prepare, prepare_quantised
from .report import report


def main(arguments: list[str]) -> int:
    """Print a table for each model, and each codec, of the families named (all without a name). 1: some differ."""
    unknown = [name for name in arguments if name not in FAMILIES]
    if unknown:
        print(f"no family {unknown[0]}; there are {', '.join(sorted(FAMILIES))}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    failed = [title for title, model in _models(arguments or sorted(FAMILIES)) if not report(title, model)]
    if failed:
        print(f"\ndiffers: {', '.join(failed)}")
    return 1 if failed else 0


def _models(families: Sequence[str]) -> Iterator[tuple[str, Prepared]]:
    """Every case of these families, and every codec in which their experts are tested; each is gone after its turn."""
    for family in families:
        for case in CASES:
            if find_family({"model_type": case.family}).name == family:
                with tempfile.TemporaryDirectory() as folder:
                    yield case.name, prepare(case, Path(folder))
        for codec in FAMILIES[family].tested:
            if codec != "f32":
                with tempfile.TemporaryDirectory() as folder:
                    yield f"{family} in {codec}", prepare_quantised(family, codec, Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
