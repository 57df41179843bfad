"""Models of families that choose what they see, their mixers Triton's and interpreted, beside the CPU's.

Run with TRITON_INTERPRET=1. Arguments are names of cases of tests/parity. Prints a JSON object: for each the largest
difference of the logits of a prompt and of steps of one token as a share of the largest.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.program.device.executor import DeviceExecutor
from engine.program.device.triton_mixers import TritonMixers
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from tests.gpu.interpreted import MIB, InterpretingDriver, load
from tests.parity.cases import CASES
from tests.parity.check import in_chunks
from tests.parity.device import some_slots
from tests.parity.prepare import prepare

MEMORY = 512 * MIB


def run(name: str, folder: Path) -> float:
    model = prepare(next(case for case in CASES if case.name == name), folder)
    program, prompt = lower(model.spec), model.truth.prompt
    sizes = [len(prompt) - 3, 1, 1, 1]
    near = in_chunks(NativeExecutor(program, model.ftw.dense, model.ftw.banks), prompt, sizes)
    driver = InterpretingDriver(MEMORY, granularity=4096)
    bank = HostBank.load(model.ftw, driver, MEMORY)
    executor = DeviceExecutor(
        program, model.ftw, driver, bank, slots=some_slots(model.ftw), split=Split.carry(0.5), max_tokens=64,
        make_mixers=partial(TritonMixers, load=load),
    )  # fmt: skip
    found = in_chunks(executor, prompt, sizes)
    executor.close()
    bank.close()
    return float(np.abs(found - near).max() / np.abs(near).max())


def main() -> None:
    shares = {}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            shares[name] = run(name, Path(folder))
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
