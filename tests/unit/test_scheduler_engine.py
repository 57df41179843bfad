"""The worker's engine over a fake executor whose logits betray every mistake with pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Floats
from engine.worker.engine import Engine
from engine.worker.protocol import (
    Cancel,
    Failed,
    Generate,
    Progress,
    Resize,
    Resized,
    Sampling,
    ThoughtBound,
)
from engine.worker.sampler import Choice, Sampler
from engine.worker.scheduler import Policy
from tests.unit.engine_rig import GREEDY, Front, actions, make
from tests.unit.fake_executor import CRASH, POISON, FakeExecutor, answer, fake_model


def test_one_request_gets_exactly_its_tokens() -> None:
    front, _ = make()
    front.generate(1, [10, 11, 12], 9)
    front.run()
    assert front.tokens[1] == answer([10, 11, 12], 9)
    done = front.done[1]
    assert (done.reason, done.prompt_tokens, done.generated, done.cached_tokens) == ("length", 3, 9, 0)


def test_an_answer_tells_what_its_decoding_read() -> None:
    front = Front(Engine(fake_model()))
    front.generate(1, [15, 16, 17], 4)
    front.run()
    assert front.done[1].decode_bytes == 3 * (1000 + 300)  # the first token comes with the prompt


def test_a_stop_id_ends_the_answer_and_is_not_told() -> None:
    front, _ = make()
    expected = answer([10, 11, 12], 9)
    front.send(Generate(1, (10, 11, 12), 50, (expected[4],), GREEDY))
    front.run()
    assert front.tokens[1] == expected[: expected.index(expected[4])]
    assert front.done[1].reason == "stop"
    assert front.done[1].generated == len(front.tokens[1]) + 1


def test_the_end_of_the_context_is_length_and_fills_it_exactly() -> None:
    front, _ = make(kv_tokens=64, context=40)
    front.generate(1, [20] * 30, 1000)
    front.run()
    assert len(front.tokens[1]) == 10
    assert front.done[1].reason == "length"


def test_a_prompt_without_room_for_an_answer_is_refused_with_both_counts() -> None:
    front, _ = make(kv_tokens=64)
    front.generate(1, [20] * 64, 1)
    assert front.failed[1].error == "ContextFullError"
    assert "64 tokens" in front.failed[1].message
    front.generate(2, [20] * 63, 1)
    front.run()
    assert front.done[2].generated == 1


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Generate(1, (), 5), "empty"),
        (Generate(1, (1, 300), 5), "Token 300 is not one of the model's 300"),
        (Generate(1, (1, -1), 5), "Token -1"),
        (Generate(1, (1,), 0), "max_tokens is 0"),
        (Generate(1, (1,), 5, (), Sampling(logit_bias={999: 1.0})), "Token 999"),
    ],
)
def test_bad_requests_are_answered_and_leave_nothing(message: Generate, sentence: str) -> None:
    front, _ = make()
    front.send(message)
    assert sentence in front.failed[1].message
    assert not front.engine.busy


def test_neighbours_change_nothing() -> None:
    front, executor = make()
    prompts = {number: [number + 20] * (5 + 13 * number) for number in range(6)}
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=5)
    for number, prompt in prompts.items():
        front.generate(number, prompt, 20, sampling)
    front.run()
    assert max(len(batch.page_tables) for batch in executor.batches) == 6
    for number, prompt in prompts.items():
        alone, _ = make()
        alone.generate(number, prompt, 20, sampling)
        alone.run()
        assert front.tokens[number] == alone.tokens[number]


def test_equal_prompts_at_once_are_read_once() -> None:
    front, executor = make()
    prompt = list(range(20, 120))
    for number in range(4):
        front.generate(number, prompt, 5)
    front.run()
    read = sum(len(batch.tokens) for batch in executor.batches)
    assert read < 100 + 4 * (PAGE_TOKENS + 5)
    assert sorted(done.cached_tokens for done in front.done.values()) == [0, 96, 96, 96]
    assert all(tokens == answer(prompt, 5) for tokens in front.tokens.values())


def test_the_next_turn_reuses_prompt_and_answer() -> None:
    front, _ = make()
    prompt = [30] * 50
    front.generate(1, prompt, 30)
    front.run()
    conversation = prompt + front.tokens[1] + [31] * 5
    front.generate(2, conversation, 5)
    front.run()
    assert front.done[2].cached_tokens == 64  # of the 79 that were computed, whole pages
    assert front.tokens[2] == answer(conversation, 5)


def test_when_memory_runs_out_the_youngest_waits_and_nobody_is_lost() -> None:
    front, _ = make(kv_tokens=160)
    prompts = {number: [number + 40] * 33 for number in range(4)}
    for number, prompt in prompts.items():
        front.generate(number, prompt, 100)
    front.run()
    assert front.stats()["preemptions"] > 0
    for number, prompt in prompts.items():
        assert front.tokens[number] == answer(prompt, 100)
    assert next(iter(front.done)) == 0
    assert front.stats()["kv_tokens_held"] == 0


def test_a_bounded_thought_survives_that_its_request_waits() -> None:
    bounded = replace(GREEDY, thought=ThoughtBound(40, (), (), closing=(3, 4, 5), begun=True))
    prompts = {number: [number + 40] * 33 for number in range(4)}
    crowded, _ = make(kv_tokens=160)
    for number, prompt in prompts.items():
        crowded.generate(number, prompt, 100, bounded)
    crowded.run()
    assert crowded.stats()["preemptions"] > 0
    for number, prompt in prompts.items():
        thought = answer(prompt, 40)
        behind = answer([*prompt, *thought, 3, 4, 5], 57)
        assert crowded.tokens[number] == [*thought, 3, 4, 5, *behind]


def test_a_cancelled_request_is_silent_from_the_next_step_and_its_pages_are_free() -> None:
    front, executor = make()
    front.generate(1, [50] * 100, 500)
    front.generate(2, [51] * 10, 20)
    for _ in range(5):
        front.hear(front.engine.step())
    front.send(Cancel(1))
    said, batches = len(front.tokens[1]), len(executor.batches)
    front.run()
    assert len(front.tokens[1]) == said
    assert 1 not in front.done
    assert all(len(batch.page_tables) == 1 for batch in executor.batches[batches:])
    assert front.tokens[2] == answer([51] * 10, 20)
    assert front.stats()["kv_tokens_held"] == 0
    front.send(Cancel(1))
    front.send(Cancel(77))


def test_nan_fails_its_own_request_alone_and_poisons_no_prefix() -> None:
    front, _ = make()
    front.generate(1, [60] * 20 + [POISON] + [60] * 20, 5)
    front.generate(2, [61] * 20, 5)
    front.run()
    assert "not a number" in front.failed[1].message
    assert front.tokens[2] == answer([61] * 20, 5)
    assert front.stats()["kv_tokens_cached"] == 16  # of request 2


def test_a_sampler_that_raises_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Sampler.choose

    def choose_or_raise(self: Sampler, logits: Floats) -> Choice:
        if self._sampling.temperature == 0.5:
            raise IndexError("a mistake")
        return choose(self, logits)

    monkeypatch.setattr(Sampler, "choose", choose_or_raise)
    front, _ = make()
    front.generate(1, [60] * 20, 5, Sampling(temperature=0.5))
    front.generate(2, [61] * 20, 5)
    front.run()
    assert "a mistake" in front.failed[1].message
    assert front.tokens == {2: answer([61] * 20, 5)}
    assert front.stats()["kv_tokens_held"] == 0


def test_a_step_that_raises_fails_its_requests_and_the_worker_goes_on() -> None:
    front, _ = make()
    front.generate(1, [60, CRASH], 5)
    front.run()
    assert "crash token" in front.failed[1].message
    front.generate(2, [61], 5)
    front.run()
    assert front.tokens[2] == answer([61], 5)


def test_a_long_prompt_is_read_between_the_tokens_of_a_running_stream() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    model = fake_model(4096)
    executor = FakeExecutor(model.budget.context.room, pace=0.001, sleep=sleep)
    policy = Policy(streaming_seconds=0.1, patience=0.0)
    front = Front(Engine(replace(model, executor=executor), policy, lambda: now))
    front.generate(1, [70], 400)
    for _ in range(10):
        front.hear(front.engine.step())
    front.generate(2, list(range(20, 220)) * 10, 1)
    while 2 not in front.done:
        before = len(front.tokens[1])
        front.hear(front.engine.step())
        assert len(front.tokens[1]) == before + 1, "a reading step must also move the stream"
    sizes = [len(batch.tokens) for batch in executor.batches if len(batch.page_tables) == 2]
    assert max(sizes) <= 100
    assert sizes[len(sizes) // 2] > 80
    progress = [m.computed for m in front.log if isinstance(m, Progress) and m.request == 2]
    assert progress == sorted(progress)
    assert progress[-1] == 2000


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    front, _ = make(kv_tokens=4096, policy=Policy(max_step_tokens=64))
    front.generate(1, list(range(20, 220)) * 10, 5)
    front.hear(front.engine.step())
    front.generate(2, [80] * 20, 5)
    front.run()
    assert list(front.done) == [2, 1]


def test_resize_keeps_live_requests_to_the_bit() -> None:
    front, executor = make(kv_tokens=1024)
    filler = {number: [number + 90] * 60 for number in range(4)}
    for number, prompt in filler.items():
        front.generate(number, prompt, 2)
    front.run()
    live = {number: [number] * 40 for number in range(100, 104)}
    for number, prompt in live.items():
        front.generate(number, prompt, 60)
    for _ in range(20):
        front.hear(front.engine.step())
    smaller = front.resize(tokens=320)
    assert isinstance(smaller, Resized)
    assert (smaller.kv_before, smaller.kv_after, executor.room.pages) == (1024, 320, 20)
    assert executor.copies > 0
    for _ in range(5):
        front.hear(front.engine.step())
    larger = front.resize(bytes=200_000)
    assert isinstance(larger, Resized)
    assert larger.kv_after == 2000
    front.run()
    for number, prompt in live.items():
        assert front.tokens[number] == answer(prompt, 60)


def test_readers_that_a_shrink_left_without_room_take_turns() -> None:
    front, _ = make(kv_tokens=160, policy=Policy(max_step_tokens=32))
    long, short = [101] * 90, [102] * 60
    front.generate(1, long, 3)
    front.generate(2, short, 3)
    front.hear(front.engine.step())
    front.hear(front.engine.step())
    assert isinstance(front.resize(tokens=112), Resized)
    front.run(100)
    assert front.stats()["preemptions"] > 0
    assert front.tokens == {1: answer(long, 3), 2: answer(short, 3)}


def test_who_does_not_fit_beside_the_others_waits_its_turn() -> None:
    front, executor = make(kv_tokens=160)
    for number in (1, 2):
        front.generate(number, [105 + number] * 90, 3)
    front.run()
    assert max(len(batch.page_tables) for batch in executor.batches) == 1
    assert front.stats()["preemptions"] == 0
    assert list(front.done) == [1, 2]


def test_a_waiting_request_is_live_too() -> None:
    front, _ = make(kv_tokens=512)
    front.generate(1, [103] * 200, 3)
    refused = front.resize(tokens=192)
    assert isinstance(refused, Failed)
    assert "200 tokens" in refused.message
    assert isinstance(front.resize(tokens=208), Resized)
    front.run()
    assert front.tokens[1] == answer([103] * 200, 3)


def test_a_prefix_that_others_hold_takes_no_room_of_its_own() -> None:
    front, executor = make(kv_tokens=160)
    prompt = [104] * 96
    front.generate(1, prompt, 30)
    front.hear(front.engine.step())
    front.generate(2, [*prompt, 105], 3)  # seven pages of ten, six of them there
    front.run()
    assert max(len(batch.page_tables) for batch in executor.batches) == 2
    assert front.stats()["preemptions"] == 0
    assert front.tokens == {1: answer(prompt, 30), 2: answer([*prompt, 105], 3)}


def test_resize_refuses_what_live_requests_need_and_the_old_size_stands() -> None:
    front, executor = make(kv_tokens=512)
    front.generate(1, [110] * 200, 20)
    front.hear(front.engine.step())
    front.hear(front.engine.step())
    refused = front.resize(tokens=128)
    assert isinstance(refused, Failed)
    assert refused.error == "DoesNotFitError"
    assert "--kv 128" in refused.message
    assert executor.room.pages == 32
    executor.most_pages = 64
    refused = front.resize(tokens=2048)
    assert isinstance(refused, Failed)
    assert "64 too many" in refused.message
    front.run()
    assert front.tokens[1] == answer([110] * 200, 20)
    assert front.stats()["kv_tokens"] == 512


def test_experts_on_a_cpu_are_told_to_have_no_effect() -> None:
    front, _ = make()
    (resized,) = front.engine.handle(Resize(3, experts="2G"))
    assert isinstance(resized, Resized)
    assert "no effect" in resized.notes[0]
    assert resized.kv_before == resized.kv_after


@settings(max_examples=80, deadline=None)
@given(st.lists(actions, max_size=40), st.integers(1, 5), st.sampled_from([16, 32, 512]))
def test_whatever_happens_every_request_ends_with_the_tokens_it_would_have_alone(
    story: list[tuple[str, int, int, int]], max_active: int, step_tokens: int
) -> None:
    front, _ = make(kv_tokens=160, policy=Policy(max_active=max_active, max_step_tokens=step_tokens))
    prompts: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    for action, *numbers in story:
        if action == "generate":
            number = len(prompts) + 1
            prompts[number] = [20 + numbers[0]] * (numbers[1] - numbers[1] % 7) + [9] * (1 + numbers[1] % 7)
            front.generate(number, prompts[number], numbers[2])
        elif action == "cancel":
            front.send(Cancel(numbers[0]))
            cancelled.add(numbers[0])
        elif action == "resize":
            front.resize(tokens=numbers[0])
        else:
            for _ in range(numbers[0]):
                front.hear(front.engine.step())
    front.run()
    for number, prompt in prompts.items():
        got = front.tokens.get(number, [])
        assert got == answer(prompt, len(got))
        ended = number in front.done or number in front.failed
        assert ended or number in cancelled
    stats = front.stats()
    assert stats["kv_tokens_held"] == stats["active"] == stats["waiting"] == 0
