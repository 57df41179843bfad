"""Random lives of a device executor: steps, sizes and splits in any order, every logit the native executor's."""

from __future__ import annotations

import numpy as np
import pytest

from engine.device.sim import SimDriver
from engine.experts.hybrid import Signals
from engine.experts.split import Split
from tests.unit.device_rig import MIB, Talk, moe_model
from tests.unit.native_model import EXPERTS

CAPACITY = (3 * EXPERTS, EXPERTS)


@pytest.mark.parametrize(
    "codec", ["q4_0", pytest.param("f32", marks=pytest.mark.long), pytest.param("mxfp4", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("signals", ["memory", "host"])
def test_a_random_life(codec: str, signals: Signals) -> None:
    random = np.random.default_rng(len(codec))
    model = moe_model(codec)
    executor = model.device(
        (4, 2), Split.carry(0.5), signals=signals, driver=SimDriver(256 * MIB, granularity=4096, seed=9)
    )
    talk = Talk(model.native(), executor)
    sequences = 0
    for _ in range(60):
        match random.integers(6):
            case 0:
                executor.resize_experts([int(random.choice([0, random.integers(most + 1), most])) for most in CAPACITY])
            case 1:
                share = float(random.random())
                splits = (Split.all_fill(), Split.all_cpu(), Split.carry(share), Split.of_fraction(share))
                executor.set_split(splits[random.integers(len(splits))])
            case 2 if sequences < 5:
                talk.step(**{f"s{sequences}": int(random.integers(1, 40))})
                sequences += 1
            case _:
                counts = {
                    f"s{number}": int(random.integers(1, 4)) for number in range(sequences) if random.random() < 0.7
                }
                if counts:
                    talk.step(**counts)
        executor.check()
    counters = executor.counters()
    assert min(counters[name] for name in ("hits", "fills", "cpu_experts")) > 0
    assert counters["steps"] > 30
