"""The division of a device's memory: every part stated, what was asked for kept, sentences for what does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.base.errors import DoesNotFitError, NoRoomError, UsageError
from engine.base.units import GIB, MIB, ExpertRoom, KvBudget
from engine.memory.budget import DEFAULT_CONTEXT, LEAST_STATES, ContextNeeds
from engine.memory.device_budget import (
    KV_FLOOR,
    DeviceNeeds,
    DevicePlan,
    plan_device,
    plan_device_resize,
)
from engine.memory.pages import PAGE_TOKENS
from engine.memory.slots import BankSize, SlotTable

TABLE = SlotTable((BankSize(3 * MIB, 1024, 1024), BankSize(5 * MIB, 128, 128)), top_k=8, chunk=2 * MIB)
NEEDS = DeviceNeeds(GIB, 200 * MIB, ContextNeeds(50_000), 40_960, TABLE)


def resized(plan: DevicePlan, needs: DeviceNeeds = NEEDS, free: int | None = None, **wishes: Any) -> DevicePlan:
    more: dict[str, Any] = {"context_limit": needs.model_context, "context_border": None, **wishes}
    return plan_device_resize(plan, needs, plan.remainder if free is None else free, **more)


def test_without_a_wish_context_has_its_default_and_experts_the_rest() -> None:
    plan = plan_device(NEEDS, 4 * GIB)
    assert plan.kv == plan.context.kv_tokens * 50_000
    assert plan.context.kv_tokens == (4 * GIB - NEEDS.fixed) // 4 // 50_000 // PAGE_TOKENS * PAGE_TOKENS
    assert plan.total == 4 * GIB == plan.weights + plan.buffers + plan.kv + plan.experts + plan.remainder
    assert 0 <= plan.remainder < 5 * MIB + 4 * MIB  # a record more and the chunks of both banks
    assert plan.slots[0] == pytest.approx(8 * plan.slots[1], rel=0.05)
    assert plan.largest_context == 40_960
    everything = plan_device(NEEDS, 16 * GIB)
    assert (everything.slots, everything.share) == ((1024, 128), 1.0)
    assert everything.context.kv_tokens == DEFAULT_CONTEXT


def test_bytes_shares_and_slots_of_one_bank_are_what_they_say() -> None:
    table = SlotTable((BankSize(MIB, 1000, 1000),), top_k=8)
    needs = DeviceNeeds(0, 0, ContextNeeds(1000), 4096, table)
    for wish, slots in (
        (ExpertRoom(bytes=64 * MIB), 64),
        (ExpertRoom(bytes=64 * MIB + 1), 64),
        (ExpertRoom(share=0.37), 370),
        (ExpertRoom(share=0.29), 290),
        (ExpertRoom(share=1.0), 1000),
        (ExpertRoom(slots=8), 8),
        (ExpertRoom(slots=999), 999),
        (ExpertRoom(), 0),
    ):
        plan = plan_device(needs, 4 * GIB, experts=wish)
        assert (plan.slots, plan.experts, plan.notes) == ((slots,), slots * MIB, ())
        assert plan.share == slots / 1000


def test_a_bank_that_cannot_be_filled_has_no_slots() -> None:
    table = SlotTable((BankSize(MIB, 100, 100), BankSize(MIB, 100, 0), BankSize(MIB, 100, 7)), top_k=8)
    assert table.wanted(ExpertRoom(slots=50)) == (50, 0, 0)
    assert table.most == (100, 0, 0)
    plan = plan_device(DeviceNeeds(0, 0, ContextNeeds(1000), 4096, table), GIB, experts=ExpertRoom(share=0.5))
    assert (plan.slots, plan.notes) == ((50, 0, 0), ())
    nothing = SlotTable((BankSize(MIB, 100, 0),), top_k=8)
    plan = plan_device(DeviceNeeds(0, 0, ContextNeeds(1000), 4096, nothing), GIB, experts=ExpertRoom(bytes=GIB))
    assert plan.slots == (0,)
    assert "--experts 1.00 GiB has no effect" in plan.notes[0]


def test_a_model_without_experts_has_context_alone() -> None:
    plan = plan_device(DeviceNeeds(MIB, MIB, ContextNeeds(1000), 4096, SlotTable((), top_k=0)), GIB)
    assert (plan.slots, plan.experts, plan.share) == ((), 0, 0.0)


def test_more_slots_than_experts_are_clamped_with_a_note() -> None:
    for wish in (ExpertRoom(slots=5000), ExpertRoom(bytes=100 * GIB)):
        plan = plan_device(NEEDS, 16 * GIB, experts=wish)
        assert plan.slots == (1024, 128)
        assert plan.notes == (f"--experts {wish} is more than the 1152 experts that can be held: each has a slot.",)


@pytest.mark.parametrize(
    "wish", [ExpertRoom(slots=1), ExpertRoom(slots=15), ExpertRoom(bytes=MIB), ExpertRoom(share=0.001)]
)
def test_too_few_slots_for_a_token_are_refused_with_the_nearest_that_works(wish: ExpertRoom) -> None:
    with pytest.raises(
        DoesNotFitError, match=rf"--experts {wish} is too little.*take 16 slots \(64\.0 MiB\)"
    ) as caught:
        plan_device(NEEDS, 4 * GIB, experts=wish)
    assert caught.value.remedy == "Give --experts 16 or more, or --experts 0 to cache none."
    assert plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=16)).slots == (8, 8)
    assert plan_device(NEEDS, 4 * GIB, experts=ExpertRoom()).slots == (0, 0)


@pytest.mark.parametrize(
    ("total", "wishes", "sentence"),
    [
        (GIB, {}, r"The device lacks 201 MiB: weights take 1\.00 GiB, buffers 200 MiB.*1\.00 GiB are free"),
        (-5, {}, "0 B are free"),
        (
            4 * GIB,
            {"kv": KvBudget(tokens=2**20)},
            r"48\.8 GiB, 46\.0 GiB more than the 2\.80.*--kv 60224 or less",
        ),
        (
            4 * GIB,
            {"experts": ExpertRoom(share=1.0)},
            r"938 MiB more.*for 2048 tokens.*--experts 861 or less\.",
        ),
        (
            4 * GIB,
            {"kv": KvBudget(tokens=32768), "experts": ExpertRoom(slots=600)},
            r"600 slots for experts take .*Give --experts 405 or less, or --kv 19\d+ or less",
        ),
        (
            4 * GIB,
            {"kv": KvBudget(tokens=60_000), "experts": ExpertRoom(slots=600)},
            r"Give --experts 0, or --kv 19\d+ or less",
        ),
        (4 * GIB, {"kv": KvBudget(bytes=100)}, "--kv 100B is 799900 bytes short of one page"),
        (4 * GIB, {"context": 50_000}, "--context 50000 is 9040 tokens more than the 40960"),
        (4 * GIB, {"context": 4096, "kv": KvBudget(tokens=1024)}, "--context 4096 needs 3072 tokens more than --kv"),
    ],
)
def test_what_does_not_fit_is_named(total: int, wishes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DoesNotFitError, match=sentence) as caught:
        plan_device(NEEDS, total, **wishes)
    assert caught.value.exit_code == 4


def test_the_numbers_that_errors_name_work_and_the_next_ones_do_not() -> None:
    both = {"kv": KvBudget(tokens=32768), "experts": ExpertRoom(slots=600)}
    with pytest.raises(NoRoomError) as caught:
        plan_device(NEEDS, 4 * GIB, **both)  # type: ignore[arg-type]
    slots, tokens = (int(word) for word in caught.value.remedy.replace(",", "").split() if word.isdigit())
    plan_device(NEEDS, 4 * GIB, kv=both["kv"], experts=ExpertRoom(slots=slots))  # type: ignore[arg-type]
    plan_device(NEEDS, 4 * GIB, kv=KvBudget(tokens=tokens), experts=both["experts"])  # type: ignore[arg-type]
    with pytest.raises(NoRoomError):
        plan_device(NEEDS, 4 * GIB, kv=both["kv"], experts=ExpertRoom(slots=slots + 1))  # type: ignore[arg-type]
    with pytest.raises(NoRoomError):
        plan_device(NEEDS, 4 * GIB, kv=KvBudget(tokens=tokens + 1), experts=both["experts"])  # type: ignore[arg-type]


def test_explicit_experts_leave_context_its_floor_and_no_less() -> None:
    room = 4 * GIB - NEEDS.fixed
    most = TABLE.within(room - KV_FLOOR * 50_000)
    plan = plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=sum(most)))
    assert plan.slots == most
    assert plan.context.kv_tokens >= KV_FLOOR
    with pytest.raises(NoRoomError, match="context memory for 2048 tokens"):
        plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=sum(most) + 1))
    smaller = plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=sum(most) + 1), context=100)
    assert smaller.context.kv_tokens == 112


# --- resizing


def test_experts_nobody_asked_for_give_way_to_context_and_come_back() -> None:
    start = plan_device(NEEDS, 4 * GIB)
    longer = resized(start, kv=KvBudget(tokens=32768))
    assert longer.context.context == longer.context.kv_tokens == 32768
    assert sum(longer.slots) < sum(start.slots)
    assert resized(longer, kv=KvBudget(tokens=start.context.kv_tokens)) == start


def test_experts_that_were_asked_for_stay_and_context_is_refused_what_they_hold() -> None:
    start = plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=600))
    assert resized(start, kv=KvBudget(tokens=4096)).slots == start.slots
    with pytest.raises(NoRoomError, match=r"Give --experts \d+ or less, or --kv \d+ or less"):
        resized(start, kv=KvBudget(tokens=32768))


def test_a_share_of_context_gives_experts_the_rest_both_ways() -> None:
    start = plan_device(NEEDS, 4 * GIB, experts=ExpertRoom(slots=300))
    room = 4 * GIB - NEEDS.fixed
    for share in (0.1, 0.5, 0.1):
        plan = resized(start, kv=KvBudget(share=share))
        assert room * share - PAGE_TOKENS * 50_000 < plan.kv <= room * share
        assert plan.slots == TABLE.within(room - plan.kv)
        assert plan == resized(plan, kv=KvBudget(share=share))
        start = plan
    both = resized(start, kv=KvBudget(share=0.5), experts=ExpertRoom(slots=100))
    assert sum(both.slots) == 100


def test_memory_that_others_took_or_gave_back_counts() -> None:
    start = plan_device(NEEDS, 4 * GIB)
    assert resized(start, free=start.remainder + GIB, kv=KvBudget(tokens=4096)).total == 5 * GIB
    gone = resized(start, free=-GIB, kv=KvBudget(tokens=start.context.kv_tokens))
    assert (gone.total, gone.slots) == (start.used, start.slots)
    with pytest.raises(NoRoomError):
        resized(start, free=-GIB, experts=ExpertRoom(slots=sum(start.slots) + 8))


def test_a_resize_does_not_cross_the_border_of_a_context() -> None:
    start = plan_device(NEEDS, 4 * GIB, kv=KvBudget(tokens=2048))
    with pytest.raises(UsageError, match=r"--kv 8192 takes the context from 2048 to 8192 tokens; beyond 4096"):
        resized(start, kv=KvBudget(tokens=8192), context_border=4096)
    assert resized(start, kv=KvBudget(tokens=8192), context_border=4096, context_limit=4096).context.context == 4096


# --- properties


@dataclass(frozen=True)
class Case:
    """A model, and a device on which it has some room."""

    needs: DeviceNeeds
    total: int

    @property
    def room(self) -> int:
        return self.total - self.needs.fixed


def kept() -> st.SearchStrategy[ContextNeeds]:
    """What models keep: pages, perhaps window pages, perhaps states."""
    windows = st.just((0, 0)) | st.tuples(st.integers(1, 200_000), st.integers(1, 5000))
    states = st.just(0) | st.integers(1, 64 * MIB)
    return st.builds(
        lambda each, window, state: ContextNeeds(each, *window, state), st.integers(1, 200_000), windows, states
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    top_k = draw(st.integers(1, 12))
    banks = []
    for _ in range(draw(st.integers(0, 4))):
        records = draw(st.integers(top_k, 3000))
        fillable = draw(st.just(records) | st.integers(0, records))
        banks.append(BankSize(4096 * draw(st.integers(1, 2000)), records, fillable))
    needs = DeviceNeeds(
        weights=draw(st.integers(0, 4 * GIB)),
        buffers=draw(st.integers(0, GIB)),
        kept=draw(kept()),
        model_context=draw(st.integers(1, 200_000)),
        table=SlotTable(tuple(banks), top_k, draw(st.sampled_from([1, 4096, 2 * MIB]))),
    )
    least = replace(needs.nothing(LEAST_STATES), kv_tokens=PAGE_TOKENS).kv_bytes
    return Case(needs, needs.fixed + least + draw(st.integers(0, GIB) | st.integers(0, 24 * GIB)))


# Wishes as parts of what the case has, so that most of them fit and some do not.
PARTS = st.floats(0.0, 0.7)
KINDS = st.sampled_from(["tokens", "bytes", "share"])


def kv_wish(case: Case, kind: str, part: float) -> KvBudget:
    size = case.needs.kept.bytes_per_token * PAGE_TOKENS + int(part * case.room)
    if kind == "share":
        return KvBudget(share=0.001 + part)
    return KvBudget(bytes=size) if kind == "bytes" else KvBudget(tokens=size // case.needs.kept.bytes_per_token)


def experts_wish(case: Case, kind: str, part: float) -> ExpertRoom:
    table = case.needs.table
    if kind == "share":
        return ExpertRoom(share=part)
    if kind == "bytes":
        return ExpertRoom(bytes=table.bytes_of(table.least) + int(part * case.room))
    return ExpertRoom(slots=sum(table.least) + int(1.5 * part * sum(table.most)))


KV_WISHES = st.none() | st.tuples(KINDS, PARTS)
EXPERTS_WISHES = st.none() | st.tuples(KINDS, PARTS)
Asked = tuple[str, float] | None


def wishes(case: Case, kv: Asked, experts: Asked) -> dict[str, Any]:
    return {
        "kv": None if kv is None else kv_wish(case, *kv),
        "experts": None if experts is None else experts_wish(case, *experts),
    }


def planned(case: Case, **asked: Any) -> DevicePlan:
    """The plan, or none of this example's business."""
    try:
        return plan_device(case.needs, case.total, **asked)
    except DoesNotFitError:
        assume(False)
        raise


@given(cases(), st.none() | st.integers(1, 2000), KV_WISHES, EXPERTS_WISHES)
def test_parts_add_up_and_none_is_negative(case: Case, context: int | None, kv: Asked, experts: Asked) -> None:
    needs = case.needs
    plan = planned(case, context=context, **wishes(case, kv, experts))
    assert plan.weights + plan.buffers + plan.kv + plan.experts + plan.remainder == plan.total == case.total
    assert min(plan.weights, plan.buffers, plan.kv, plan.experts, plan.remainder) >= 0
    assert 1 <= plan.context.context <= min(needs.model_context, plan.context.kv_tokens)
    assert plan.context.kv_tokens % PAGE_TOKENS == 0
    for slots, bank in zip(plan.slots, needs.table.banks, strict=True):
        assert slots == 0 or needs.table.top_k <= slots <= bank.fillable
    assert 0 <= plan.share <= 1
    assert plan.largest_context >= plan.context.context


@given(cases(), KV_WISHES, KINDS, PARTS, PARTS)
def test_more_experts_are_never_fewer_and_never_more_context(
    case: Case, kv: Asked, kind: str, one: float, other: float
) -> None:
    few = planned(case, **wishes(case, kv, (kind, min(one, other))))
    many = planned(case, **wishes(case, kv, (kind, max(one, other))))
    assert all(less <= more for less, more in zip(few.slots, many.slots, strict=True))
    assert few.kv >= many.kv


@given(cases(), KINDS, PARTS, PARTS)
def test_more_context_is_never_less_and_never_more_experts(case: Case, kind: str, one: float, other: float) -> None:
    short = planned(case, kv=kv_wish(case, kind, min(one, other)))
    long = planned(case, kv=kv_wish(case, kind, max(one, other)))
    assert short.kv <= long.kv
    assert all(more >= less for more, less in zip(short.slots, long.slots, strict=True))


@given(cases(), st.integers(0, GIB), st.none() | st.tuples(st.sampled_from(["tokens", "bytes"]), PARTS), KINDS, PARTS)
def test_a_larger_device_gives_at_least_what_a_smaller_one_gave(
    case: Case, more: int, kv: Asked, kind: str, part: float
) -> None:
    asked = wishes(case, kv, (kind, part))
    small = planned(case, **asked)
    large = plan_device(case.needs, case.total + more, **asked)
    assert (large.slots, large.experts) == (small.slots, small.experts)
    assert large.kv >= small.kv


@given(cases(), KV_WISHES, EXPERTS_WISHES)
def test_a_plan_asked_for_by_its_own_numbers_is_the_same(case: Case, kv: Asked, experts: Asked) -> None:
    plan = planned(case, **wishes(case, kv, experts))
    own: dict[str, Any] = {
        "kv": KvBudget(tokens=plan.context.kv_tokens),
        "experts": ExpertRoom(slots=sum(plan.slots)),
    }
    again = plan_device(case.needs, case.total, context=plan.context.context, **own)
    assert (again.slots, again.context) == (plan.slots, plan.context)
    live = resized(plan, case.needs, context_limit=plan.context.context, **own)
    assert (live.slots, live.context, live.total) == (plan.slots, plan.context, plan.total)
    assert resized(live, case.needs, context_limit=plan.context.context, **own) == live


@given(cases(), EXPERTS_WISHES)
def test_the_largest_context_fits_and_a_page_more_does_not(case: Case, experts: Asked) -> None:
    asked = wishes(case, None, experts)["experts"]
    plan = planned(case, experts=asked)
    fits = plan_device(case.needs, case.total, experts=asked, context=plan.largest_context)
    assert fits.context.context == plan.largest_context
    if plan.largest_context + PAGE_TOKENS <= case.needs.model_context:
        with pytest.raises(NoRoomError):
            plan_device(case.needs, case.total, experts=asked, context=plan.largest_context + PAGE_TOKENS)


@given(cases(), KV_WISHES, EXPERTS_WISHES, EXPERTS_WISHES, st.integers(-GIB, GIB))
def test_a_resize_stays_within_what_there_is_and_can_be_asked_for_twice(
    case: Case, kv: Asked, before: Asked, experts: Asked, change: int
) -> None:
    start = planned(case, **wishes(case, None, before))
    asked = wishes(case, kv, experts)
    try:
        plan = resized(start, case.needs, start.remainder + change, **asked)
    except DoesNotFitError:
        assume(False)
        raise
    assert plan.used <= plan.total == start.used + max(0, start.remainder + change)
    assert resized(plan, case.needs, **asked) == plan
