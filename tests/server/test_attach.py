"""The rule by which somebody's flags meet a loaded model."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from engine.base.errors import DoesNotFitError, UnsupportedError, UsageError
from engine.base.units import KvBudget
from engine.front.wire.fields import read_fields
from engine.front.workers.attach import FLAGS, Decision, LoadFlags, Running, Step, decide, pick_device
from engine.front.workers.loaded import Loaded

RUNNING = Running(
    device="cpu", threads=4, context_limit=2048, context_border=None, kv_tokens=8192, kv_bytes_per_token=1000
)


@pytest.mark.parametrize(
    "asked",
    [
        LoadFlags(),
        LoadFlags(device="auto"),
        LoadFlags(device="cpu", threads=4, context=2048, kv=KvBudget(tokens=8192)),
        LoadFlags(kv=KvBudget(tokens=8180)),  # the same whole pages
        LoadFlags(kv=KvBudget(bytes=8_200_000)),
        LoadFlags(experts="37%"),  # means nothing on the cpu
    ],
)
def test_flags_that_hold_attach(asked: LoadFlags) -> None:
    for busy in (False, True):
        assert decide(RUNNING, asked, busy) == Decision(Step.ATTACH)


@pytest.mark.parametrize(
    "asked",
    [LoadFlags(kv=KvBudget(tokens=4096)), LoadFlags(kv=KvBudget(bytes=10**7)), LoadFlags(kv=KvBudget(tokens=9000))],
)
def test_context_memory_moves_even_while_requests_run(asked: LoadFlags) -> None:
    for busy in (False, True):
        assert decide(RUNNING, asked, busy).step is Step.RESIZE


@pytest.mark.parametrize(
    ("asked", "mismatch"),
    [
        (LoadFlags(threads=2), "--threads 2 (it runs with 4)"),
        (LoadFlags(context=4096), "--context 4096 (it has 2048)"),
        (LoadFlags(context=1024), "--context 1024 (it has 2048)"),
        (LoadFlags(threads=2, kv=KvBudget(tokens=1024)), "--threads 2 (it runs with 4)"),
        (LoadFlags(device="cuda"), "--device cuda (it runs on cpu)"),
        (LoadFlags(device="sim"), "--device sim (it runs on cpu)"),
    ],
)
def test_anything_else_restarts_an_idle_worker_and_is_refused_by_a_busy_one(asked: LoadFlags, mismatch: str) -> None:
    assert decide(RUNNING, asked, busy=False) == Decision(Step.RESTART, (mismatch,))
    assert decide(RUNNING, asked, busy=True) == Decision(Step.REFUSE, (mismatch,))


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        (LoadFlags(context=8192, kv=KvBudget(tokens=8192)), Step.ATTACH),
        (LoadFlags(context=8192, kv=KvBudget(tokens=16384)), Step.RESTART),
        (LoadFlags(context=4096, kv=KvBudget(tokens=4096)), Step.RESIZE),
        (LoadFlags(context=4096), Step.RESTART),
        (LoadFlags(context=32768, kv=KvBudget(tokens=65536)), Step.RESIZE),
    ],
)
def test_a_context_that_was_asked_for_holds_after_the_resize_too(asked: LoadFlags, step: Step) -> None:
    as_it_came = replace(RUNNING, context_limit=32768)  # nobody asked for a context, the model has 32768
    assert decide(as_it_came, asked, busy=False).step is step


@pytest.mark.parametrize(
    ("tokens", "step"), [(4096, Step.RESIZE), (16384, Step.RESIZE), (2048, Step.RESTART), (1024, Step.RESTART)]
)
def test_a_budget_that_takes_another_program_takes_a_restart(tokens: int, step: Step) -> None:
    long = replace(RUNNING, context_limit=32768, context_border=2048)
    assert decide(long, LoadFlags(kv=KvBudget(tokens=tokens)), busy=False).step is step


ON_DEVICE = replace(RUNNING, device="sim", experts="37%", slots=120)


@pytest.mark.parametrize("busy", [False, True])
def test_room_for_experts_on_a_device_holds_or_is_moved(busy: bool) -> None:
    assert decide(ON_DEVICE, LoadFlags(experts="37%"), busy) == Decision(Step.ATTACH)
    assert decide(ON_DEVICE, LoadFlags(device="sim"), busy) == Decision(Step.ATTACH)
    moved = decide(ON_DEVICE, LoadFlags(experts="64M", kv=KvBudget(tokens=4096)), busy)
    assert moved == Decision(Step.RESIZE, ("--kv 4096 (it has 8192)", "--experts 64M (it has 120 slots)"))
    chosen = replace(ON_DEVICE, experts=None)  # nobody asked for the room that it has
    assert decide(chosen, LoadFlags(experts="37%"), busy).step is Step.RESIZE


def test_a_share_of_context_is_moved_on_a_device_and_means_nothing_on_the_cpu() -> None:
    share = LoadFlags(kv=KvBudget(share=0.4))
    assert decide(ON_DEVICE, share, busy=True) == Decision(Step.RESIZE, ("--kv 40% (it has 8192)",))
    with pytest.raises(UsageError, match="nothing is cached here"):
        decide(RUNNING, share, busy=False)
    both = replace(share, context=2048)
    assert decide(ON_DEVICE, both, busy=True) == Decision(Step.REFUSE, ("--kv 40% together with --context 2048",))


def test_text_for_experts_is_read_once_and_kept_exactly() -> None:
    assert LoadFlags.of(read_fields({"experts": "37.0 %"}, FLAGS)).experts == "37%"
    assert LoadFlags.of(read_fields({"experts": "0%"}, FLAGS)).experts == "0"
    assert LoadFlags.of(read_fields({"kv_share": 0.25}, FLAGS)).kv == KvBudget(share=0.25)


def test_flags_that_contradict_each_other_stop_nothing() -> None:
    with pytest.raises(DoesNotFitError, match="--context 4096 needs 3072 tokens more than --kv leaves"):
        decide(RUNNING, LoadFlags(context=4096, kv=KvBudget(tokens=1024)), busy=False)


def test_flags_over_defaults_take_the_kv_fields_as_one() -> None:
    defaults = LoadFlags(device="auto", threads=8, kv=KvBudget(bytes=10**9))
    kv = KvBudget(tokens=64)
    assert LoadFlags(kv=kv).over(defaults) == LoadFlags(device="auto", threads=8, kv=kv)
    assert LoadFlags(threads=1).over(defaults) == LoadFlags(device="auto", threads=1, kv=KvBudget(bytes=10**9))


def test_devices_of_this_release() -> None:
    assert {pick_device(name) for name in (None, "auto", "cpu")} == {"cpu"}
    assert pick_device("sim") == "sim"
    with pytest.raises(UnsupportedError, match="--device cuda"):
        pick_device("cuda")


@pytest.mark.parametrize(
    "table",
    [
        {"threads": 0},
        {"threads": True},
        {"threads": "2"},
        {"context": 1.5},
        {"kv_bytes": -1},
        {"kv_tokens": 2**63},
        {"device": "tpu"},
        {"device": 5},
        {"experts": 5},
        {"experts": "many"},
        {"kv_share": 0},
        {"kv_share": 1.0},
        {"kv_share": "40%"},
        {"kv_share": 0.5, "kv_tokens": 5},
        {"kv_tokens": 1, "kv_bytes": 1},
    ],
)
def test_bad_flags_are_usage_errors(table: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LoadFlags.of(read_fields(table, FLAGS))


def test_a_clock_that_is_set_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    any_part: Any = None
    loaded = Loaded("demo", any_part, any_part, any_part, {}, LoadFlags(), 300.0, (0, 0, 0), used_at=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1100.0)
    for now in (2e9, 1e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert loaded.until == now + 200.0
