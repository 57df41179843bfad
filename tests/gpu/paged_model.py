"""Steps of a random model whose attention is Triton's, interpreted, beside the CPU's. Run with TRITON_INTERPRET=1.

Prints a JSON object: the largest difference of the logits as a share of the largest, and what the experts did.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.files.ftw.opening import open_model
from engine.measure.random_model import RandomShape, write_random_model
from engine.memory.blocks import ContextRoom
from engine.program.device.executor import DeviceExecutor
from engine.program.device.triton_mixers import TritonMixers
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.spec.schema import Spec
from tests.gpu.check_models import Talk
from tests.gpu.interpreted import MIB, InterpretingDriver, load


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(RandomShape(2, 8, 2), Path(folder) / "random")
        ftw = open_model(Path(folder) / "random")
        program = lower(Spec.from_json(ftw.spec))
        talk = Talk(list(range(5, 26)), 3)
        near = talk.logits(NativeExecutor(program, ftw.dense, ftw.banks, room=ContextRoom(talk.pages)))
        driver = InterpretingDriver(256 * MIB, granularity=4096)
        bank = HostBank.load(ftw, driver, 1 << 33)
        executor = DeviceExecutor(
            program, ftw, driver, bank, slots=(6,), split=Split.carry(0.4), room=ContextRoom(talk.pages),
            make_mixers=partial(TritonMixers, load=load),
        )  # fmt: skip
        found = talk.logits(executor)
        counters = executor.counters()
        executor.close()
        bank.close()
    worst = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, near, strict=True))
    print(json.dumps({"worst": worst, **{name: counters[name] for name in ("hits", "fills", "cpu_experts")}}))


if __name__ == "__main__":
    main()
