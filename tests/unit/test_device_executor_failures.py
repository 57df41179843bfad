"""Steps that fail on the way: the executor says why, and goes on."""

from __future__ import annotations

import numpy as np
import pytest

from engine.base.errors import FreetokenError
from engine.device.sim import SimDriver
from engine.experts.hybrid import Signals
from engine.experts.split import Split
from tests.same_bits import assert_same_bits
from tests.unit import native_model
from tests.unit.device_rig import MIB, Model, Talk, moe_model, sequence
from tests.unit.native_model import EXPERTS, VOCAB

ALL = (3 * EXPERTS, EXPERTS)  # slots that hold every expert of `moe_model`
LONG = 160  # tokens of a step that the CPU takes much longer for than it may
PATIENCE = 0.1  # seconds; a few tokens take a hundredth of it, a long step twenty times as long


@pytest.fixture(scope="module")
def wide() -> Model:
    """A model whose experts keep a CPU busy that has no vectors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_model, "HIDDEN", 256)
        patch.setattr(native_model, "WIDTH", 1024)
        return moe_model(layers=1)


@pytest.mark.parametrize("signals", ["memory", "host"])
def test_a_cpu_that_takes_too_long_fails_the_step_and_no_other(wide: Model, signals: Signals) -> None:
    driver = SimDriver(512 * MIB, granularity=4096)
    executor = wide.device(
        (5, 3), Split.all_cpu(), driver=driver, isa="scalar", patience=PATIENCE, signals=signals, max_tokens=LONG
    )
    native = wide.native()
    long = sequence(np.arange(LONG) % VOCAB, rows=[0])
    for _ in range(2):
        with pytest.raises(FreetokenError, match="CPU"):
            executor.step(long)
        executor.check()
        for _ in range(300):  # until the worker has done what it was given up on
            try:
                assert_same_bits(executor.step(sequence([3, 4])), native.step(sequence([3, 4])))
                break
            except FreetokenError:
                continue
        else:
            pytest.fail("the executor never took a step again")
    executor.close()


def test_a_step_that_breaks_off_leaves_no_half_filled_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it: fills that were planned may not be there, so that nothing counts as cached."""
    model = moe_model()
    driver = SimDriver(256 * MIB, granularity=4096)
    executor = model.device(ALL, driver=driver)
    talk = Talk(model.native(), executor)
    talk.step(s0=5)
    assert (executor.caches[0].snapshot().owner >= 0).any()

    class BrokenError(Exception):
        pass

    def broken(*_: object) -> None:
        raise BrokenError

    for count in (1, 40):
        with monkeypatch.context() as patch:
            patch.setattr(driver, "copy", broken)
            patch.setattr(driver, "native", lambda stream, name, call: SimDriver.native(driver, stream, name, broken))
            with pytest.raises(BrokenError):
                executor.step(sequence(np.arange(count) % VOCAB))
        assert (executor.caches[0].snapshot().owner == -1).all()
        executor.check()
        talk.step(s0=2)
        assert (executor.caches[0].snapshot().owner >= 0).any()
        executor.check()
