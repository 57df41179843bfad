"""The worker beside a device as Python sees it: steps that fail and later ones that work, two at once, an early end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine import _native
from engine.base.errors import BusyError, FreetokenError, UnsupportedError
from engine.device.sim import SimDriver
from engine.experts.cpu_worker import CpuWorker
from engine.experts.hybrid import Signals
from engine.experts.slot_products import Activation
from engine.experts.split import Split
from tests.same_bits import assert_same_bits
from tests.unit.hybrid_rig import HALF, BankKind, ExpertsModel, Pair, Rows
from tests.unit.native_model import EXPERTS, TOP_K

TOKENS = 600  # that take the CPU long
SLOW = BankKind("f32", width=6000)
SILU = Activation("silu", 1.0, 0.0)


@pytest.fixture(params=["memory", "host"])
def slow(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two milliseconds of patience with a CPU that takes a hundred times as long for many tokens."""
    signals: Signals = request.param
    pair = Pair([SLOW], [0], Split.all_cpu(), patience=0.002, max_tokens=TOKENS, signals=signals, threads=1)
    yield pair
    pair.rig.close()


def refused_after_a_failure(pair: Pair, rows: Rows) -> bool:
    """Whether the step after one that failed is refused: it is, unless this thread stood still for as long."""
    with pytest.raises(
        FreetokenError, match=r"did not compute the experts of MoE layer 0: it took longer than 0\.002 s"
    ):
        pair.rig.step(0, rows, TOKENS)
    try:
        pair.rig.experts.begin_step()
    except BusyError:
        return True
    pair.rig.experts.end_step()
    return False


def first_that_works(pair: Pair, rows: Rows) -> Any:
    """The output of the first step that is neither refused nor, on a busy machine, too slow again."""
    for _ in range(20_000):
        try:
            return pair.rig.step(0, rows, len(rows.x))
        except FreetokenError:
            continue
    raise AssertionError("no step works any more")


def test_a_cpu_that_is_too_slow_fails_its_step_and_holds_up_the_next(slow: Pair) -> None:
    many = slow.reference.rows(0, TOKENS, slow.rng)
    assert any(refused_after_a_failure(slow, many) for _ in range(5))
    few = slow.reference.rows(0, 1, slow.rng)
    assert_same_bits(first_that_works(slow, few), few.y)


def test_two_devices_have_workers_of_their_own() -> None:
    def live(seed: int) -> np.ndarray:
        pair = Pair([BankKind("q8_0" if seed else "q4_0")], [5], HALF, seed=seed)
        try:
            for tokens in (1, 3, 8, 2, 5, 8):
                pair.agree(0, tokens, bucket=8)
            return pair.rig.counts()
        finally:
            pair.rig.close()

    with ThreadPoolExecutor(2) as threads:
        assert all((counts > 0).all() for counts in threads.map(live, range(2)))


# --- requests by hand


class Asked:
    """A worker of two layers, and the words that a device would write."""

    def __init__(self) -> None:
        self.driver = SimDriver()
        model = ExpertsModel([BankKind(layers=2)])
        sizes = {"max_tokens": 4, "top_k": TOP_K, "hidden": model.hidden}
        self._layout = _native.mailbox_layout(**sizes)
        self.worker = CpuWorker(self.driver, model.banks, [SILU, SILU], **sizes, threads=1, isa="", patience=60.0)

    def request(self, layer: int, ids: list[int]) -> None:
        words = {"rows": 1, "top_k": len(ids), "done": 0}
        for name, value in words.items():
            self.driver.upload(self.worker.header + self._layout[name], np.array([value], np.uint32))
        self.driver.upload(self.worker.ids, np.array(ids, np.int32))
        self.driver.upload(self.worker.request, np.array([layer + 1], np.uint32))

    def answered(self, layer: int) -> bool:
        return _native.wait_word(self.worker.done, layer + 1, 30.0)


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.worker.close()


def test_requests_are_counted(asked: Asked) -> None:
    asked.worker.begin_step()
    for layer, ids in ((0, [3, -1]), (1, [-1, -1]), (1, [0, 7])):
        asked.request(layer, ids)
        assert asked.answered(layer)
    asked.worker.end_step()
    counters = asked.worker.counters()
    assert (counters["requests"], counters["empty"], counters["experts"]) == (3, 1, 3)
    assert counters["bytes"] > 0
    assert 0 < counters["seconds"] < 30


@pytest.mark.parametrize(
    ("layer", "ids", "why"),
    [
        (0, [EXPERTS], "MoE layer 0: the router chose no expert"),
        (5, [0], "MoE layer 5: the device asked for MoE layer 5"),
        (1, [0] * (TOP_K + 1), "MoE layer 1: the device asked for 1 tokens of 4 experts each"),
    ],
)
def test_what_cannot_be_computed_fails_its_step_with_a_sentence(
    asked: Asked, layer: int, ids: list[int], why: str
) -> None:
    asked.worker.begin_step()
    asked.request(layer, ids)
    assert asked.answered(layer)
    asked.request(1, [1])
    assert asked.answered(1), "the rest of a lost step is answered"
    with pytest.raises(FreetokenError, match=why):
        asked.worker.end_step()
    asked.worker.begin_step()
    asked.request(1, [1])
    assert asked.answered(1)
    asked.worker.end_step()


def test_a_worker_that_ends_answers_what_is_pending(asked: Asked) -> None:
    asked.request(1, [0])  # of a worker that sleeps
    native = asked.worker._worker
    native.close()
    assert asked.answered(1)
    with pytest.raises(RuntimeError, match="closed"):
        native.wake()


def test_experts_that_do_not_fit_are_refused() -> None:
    model = ExpertsModel([BankKind()])
    sizes = {"max_tokens": 4, "top_k": TOP_K, "hidden": model.hidden, "threads": 1, "isa": "", "patience": 1.0}
    driver = SimDriver(pin_limit=1 << 20)
    for wrong in ({"hidden": model.hidden + 16}, {"isa": "none"}, {"threads": 0}):
        with pytest.raises(UnsupportedError, match="cannot run this model's experts"):
            CpuWorker(driver, model.banks, [SILU], **(sizes | wrong))
    with pytest.raises(UnsupportedError, match="MoE layer 1"):
        CpuWorker(driver, model.banks, [SILU, SILU], **sizes)
    with pytest.raises(UnsupportedError, match="activation relu"):
        CpuWorker(driver, model.banks, [Activation("relu", 0.0, 0.0)], **sizes)
    driver.host(1 << 20).free()  # nothing was left behind
