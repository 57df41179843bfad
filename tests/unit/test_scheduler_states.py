"""The worker's engine over fakes with recurrent states and windows, whose answers betray every wrong resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.budget import ContextNeeds
from engine.memory.pages import PAGE_TOKENS
from engine.worker.engine import Engine
from engine.worker.protocol import Cancel, Generate, Resized
from engine.worker.scheduler import POLICY, Policy
from tests.unit.engine_rig import GREEDY, Front, actions
from tests.unit.fake_executor import CRASH, FakeExecutor, answer, fake_model
from tests.unit.test_memory_faults import FAULTS

MIB = 1 << 20
HYBRID = ContextNeeds(100, state_bytes=MIB)
WINDOWED = ContextNeeds(100, 100, reach=40)
BOTH = ContextNeeds(100, 100, reach=40, state_bytes=MIB)


def make(
    needs: ContextNeeds, states: int = 24, kv_tokens: int = 1024, policy: Policy = POLICY
) -> tuple[Front, FakeExecutor]:
    model = fake_model(kv_tokens, needs=needs, available=8 * states * MIB)
    assert isinstance(model.executor, FakeExecutor)
    assert model.executor.room.states == (states if needs.state_bytes else 0)
    return Front(Engine(model, policy)), model.executor


def ask(front: Front, number: int, prompt: list[int], count: int, anchors: tuple[tuple[int, bool], ...] = ()) -> None:
    front.send(Generate(number, tuple(prompt), count, (), GREEDY, anchors, {21: True}))


def nothing_held(front: Front) -> bool:
    stats = front.stats()
    return stats["kv_tokens_held"] == stats["windows_held"] == stats["states_held"] == 0


@pytest.mark.parametrize("needs", [HYBRID, WINDOWED, BOTH], ids=["hybrid", "windowed", "both"])
def test_the_next_turn_goes_on_from_where_the_answer_ended(needs: ContextNeeds) -> None:
    front, _ = make(needs)
    prompt = [30] * 50
    ask(front, 1, prompt, 30)
    front.run()
    conversation = prompt + front.tokens[1] + [31] * 5
    ask(front, 2, conversation, 5)
    front.run()
    done = front.done[2]
    assert done.cached_tokens == 64  # of the 79 that were computed, whole pages
    assert done.reuse is not None
    assert (done.reuse.position, done.reuse.known, done.reuse.why) == (64, 64, "differs")
    assert front.tokens[2] == answer(conversation, 5)
    assert nothing_held(front)


def test_an_edit_behind_an_opening_edge_costs_what_follows_it() -> None:
    front, _ = make(HYBRID)
    prompt = [30] * 70 + [31] * 200
    ask(front, 1, prompt, 3, anchors=((70, True),))
    front.run()
    edited = [30] * 70 + [32] * 200
    ask(front, 2, edited, 3, anchors=((70, True),))
    ask(front, 3, [30] * 40 + [33] * 40, 3)
    front.run()
    assert front.done[2].cached_tokens == 64
    assert front.done[3].cached_tokens == 0
    assert front.done[3].reuse is not None
    assert (front.done[3].reuse.known, front.done[3].reuse.why) == (40, "state")
    assert front.tokens[2] == answer(edited, 3)


def test_equal_prompts_at_once_are_read_once() -> None:
    front, executor = make(BOTH, policy=Policy(max_step_tokens=32))
    prompt = list(range(20, 120))
    for number in range(4):
        ask(front, number, prompt, 5)
    front.run()
    assert sum(len(batch.tokens) for batch in executor.batches) < 100 + 4 * (PAGE_TOKENS + 5)
    assert all(tokens == answer(prompt, 5) for tokens in front.tokens.values())
    assert nothing_held(front)


def test_prompts_that_part_share_what_comes_before() -> None:
    front, executor = make(HYBRID, policy=Policy(max_step_tokens=64))
    prompts = [[40] * 150 + [41 + number] * 150 for number in range(3)]
    for number, prompt in enumerate(prompts):
        ask(front, number, prompt, 3)
    front.run()
    assert sum(len(batch.tokens) for batch in executor.batches) < 3 * 150 + 150 + 3 * (PAGE_TOKENS + 3)
    for number, prompt in enumerate(prompts):
        assert front.tokens[number] == answer(prompt, 3)


def test_who_finds_no_state_waits_and_nobody_is_lost() -> None:
    front, executor = make(HYBRID, states=4, kv_tokens=4096)
    prompts = {number: [number + 40] * 50 for number in range(6)}
    for number, prompt in prompts.items():
        ask(front, number, prompt, 20)
    front.run()
    assert max(len(batch.page_tables) for batch in executor.batches) <= 4
    for number, prompt in prompts.items():
        assert front.tokens[number] == answer(prompt, 20)
    assert nothing_held(front)


@pytest.mark.parametrize("needs", [HYBRID, WINDOWED, BOTH], ids=["hybrid", "windowed", "both"])
def test_a_preempted_request_resumes_where_it_was(needs: ContextNeeds) -> None:
    front, executor = make(needs, kv_tokens=320)
    prompts = {number: [number + 40] * 33 for number in range(4)}
    for number, prompt in prompts.items():
        ask(front, number, prompt, 100)
    front.run()
    stats = front.stats()
    assert stats["preemptions"] > 0
    for number, prompt in prompts.items():
        assert front.tokens[number] == answer(prompt, 100)
    assert nothing_held(front)
    again = sum(len(batch.tokens) for batch in executor.batches) - 4 * 132
    assert again <= stats["preemptions"] * 2 * PAGE_TOKENS + 160


@pytest.mark.parametrize("steps", range(12))
def test_whoever_leaves_in_whatever_phase_leaves_nothing_held(steps: int) -> None:
    front, _ = make(BOTH, policy=Policy(max_step_tokens=16))
    ask(front, 1, [50] * 100, 50, anchors=((40, True), (70, False)))
    ask(front, 2, [50] * 60 + [CRASH], 50)
    for _ in range(steps):
        front.hear(front.engine.step())
    front.send(Cancel(1))
    front.run()
    assert nothing_held(front)
    ask(front, 3, [50] * 110, 5)
    front.run()
    assert front.tokens[3] == answer([50] * 110, 5)


def test_a_resize_moves_states_and_windows() -> None:
    front, executor = make(BOTH, kv_tokens=1024)
    for number in range(4):
        ask(front, number, [number + 90] * 60, 2)
    front.run()
    live = {number: [number] * 40 for number in range(100, 104)}
    for number, prompt in live.items():
        ask(front, number, prompt, 60)
    for _ in range(20):
        front.hear(front.engine.step())
    before = executor.room.windows
    assert isinstance(front.resize(tokens=448), Resized)
    assert executor.room.windows < before
    for _ in range(5):
        front.hear(front.engine.step())
    assert isinstance(front.resize(tokens=2000), Resized)
    front.run()
    for number, prompt in live.items():
        assert front.tokens[number] == answer(prompt, 60)


def test_a_step_says_what_the_next_one_reads() -> None:
    front, executor = make(HYBRID, policy=Policy(max_step_tokens=64))
    ask(front, 1, [50] * 150, 2)
    front.run()
    assert [batch.more for batch in executor.batches] == [64, 22, 0, 0]


@pytest.mark.parametrize("step_seconds", [0.02, 0.2])
def test_four_streams_hardly_wait_for_a_long_prompt(step_seconds: float) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += step_seconds + seconds

    model = fake_model(32768, model_context=32768, needs=HYBRID)
    executor = FakeExecutor(model.budget.context.room, pace=0.002, sleep=sleep)
    front = Front(Engine(replace(model, executor=executor), POLICY, lambda: now))
    for number in range(4):
        ask(front, number, [40 + number] * 20, 3000)
    for _ in range(20):
        front.hear(front.engine.step())
    ask(front, 9, list(range(20, 220)) * 100, 1)
    waits = []
    while 9 not in front.done:
        before, began = [len(front.tokens[number]) for number in range(4)], now
        front.hear(front.engine.step())
        waits.append(now - began)
        assert [len(front.tokens[number]) for number in range(4)] == [count + 1 for count in before]
    assert max(waits) <= step_seconds + 4 * 0.002 + 0.3
    assert executor.batches[-1].positions.max() == 19_999


@pytest.mark.parametrize("name", ["states_are_not_copied", "windows_are_given_up_a_page_early", "saves_change_places"])
def test_a_wrong_resume_shows_in_the_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    front, _ = make(BOTH)
    prompts = {1: [30] * 170, 2: [30] * 90 + [31] * 80, 3: [30] * 170 + [32] * 30}
    for number, prompt in prompts.items():
        ask(front, number, prompt, 20, anchors=((90, True),))
        front.run()
    assert any(front.tokens.get(number) != answer(prompt, 20) for number, prompt in prompts.items())


@settings(max_examples=80, deadline=None)
@given(
    st.lists(actions, max_size=40),
    st.integers(1, 5),
    st.sampled_from([16, 32, 512]),
    st.sampled_from([HYBRID, WINDOWED, BOTH]),
    st.sampled_from([4, 6, 12]),
)
def test_whatever_happens_every_request_ends_with_the_tokens_it_would_have_alone(
    story: list[tuple[str, int, int, int]], max_active: int, step_tokens: int, needs: ContextNeeds, states: int
) -> None:
    policy = Policy(max_active=max_active, max_step_tokens=step_tokens)
    front, _ = make(needs, states, kv_tokens=160, policy=policy)
    prompts: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    for action, *numbers in story:
        if action == "generate":
            number = len(prompts) + 1
            length = numbers[1]
            prompts[number] = [20 + numbers[0]] * (length - length % 7) + [9] * (1 + length % 7)
            ask(front, number, prompts[number], numbers[2], anchors=((length // 2, True), (length, False)))
        elif action == "cancel":
            front.send(Cancel(numbers[0]))
            cancelled.add(numbers[0])
        elif action == "resize":
            front.resize(tokens=max(80, numbers[0]))
        else:
            for _ in range(numbers[0]):
                front.hear(front.engine.step())
    front.run()
    for number, prompt in prompts.items():
        got = front.tokens.get(number, [])
        assert got == answer(prompt, len(got))
        assert number in front.done or number in front.failed or number in cancelled
    assert nothing_held(front)
