"""`python -m tests.parity FAMILY`: how far every layer of a family is from transformers, and where that starts."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from engine.program.executor import Executor
from engine.spec.families import FAMILIES, find_family

from .cases import CASES, Case
from .check import TOLERANCE, differences, greedy
from .prepare import native, prepare
from .tiny import Truth


def main(arguments: list[str]) -> int:
    """Print one line a layer for each model of the families named (all without a name). 1: some model differs."""
    unknown = [name for name in arguments if name not in FAMILIES]
    if unknown:
        print(f"no family {unknown[0]}; there are {', '.join(sorted(FAMILIES))}", file=sys.stderr)
        return 2
    wanted = [case for case in CASES if not arguments or find_family({"model_type": case.family}).name in arguments]
    failed = [case.name for case in wanted if not report(case)]
    if failed:
        print(f"\ndiffers: {', '.join(failed)}")
    return 1 if failed else 0


def report(case: Case) -> bool:
    """Print how far each layer is off; true where all agree."""
    with tempfile.TemporaryDirectory() as folder:
        model = prepare(case, Path(folder))
        print(f"\n{case.name}: largest difference, as a share of the largest value")
        executors = {"reference": model.reference(), "native": native(model.ftw)}
        agree = [report_executor(name, executor, model.truth) for name, executor in executors.items()]
        return all(agree)


def report_executor(name: str, executor: Executor, truth: Truth) -> bool:
    """Print how far each layer of one executor is off; true where all agree."""
    found = differences(executor, truth)
    first = next((item for item in found if item.share > TOLERANCE), None)
    for item in found:
        mark = f"  <- first difference, largest at token {item.row}" if item is first else ""
        print(f"  {name:10s} {item.place:10s} {item.share:.1e}{mark}")
    same = greedy(executor, truth) == truth.greedy
    print(f"  {name:10s} greedy     {'equal' if same else 'DIFFERENT'}, {len(truth.greedy)} tokens")
    return first is None and same


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
