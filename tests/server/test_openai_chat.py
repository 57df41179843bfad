"""The official client against a real front: what an application does, and what it must get."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.text.text import Text
from tests.server.running_front import FAKE_MODELS, Expected, RunningFront
from tests.unit.fake_executor import logits_after

Greedy = Callable[[str, int], Expected]


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def chat(front: RunningFront, content: str, **options: Any) -> ChatCompletion:
    result = front.openai.chat.completions.create(model="fake", messages=user(content), **options)
    assert isinstance(result, ChatCompletion)
    return result


def stream(front: RunningFront, content: str, **options: Any) -> list[ChatCompletionChunk]:
    return list(front.openai.chat.completions.create(model="fake", messages=user(content), stream=True, **options))


def streamed_text(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_a_greedy_answer_is_the_models_own_continuation(front: RunningFront, greedy: Greedy) -> None:
    expected = greedy("hello", 12)
    completion = chat(front, "hello", temperature=0, max_tokens=12)
    assert completion.choices[0].message.content == expected.text
    assert completion.choices[0].finish_reason == expected.reason
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(expected.prompt)
    assert completion.usage.completion_tokens == 12
    assert completion.model == "fake"


@pytest.mark.parametrize("most", [1, 2, 7])
def test_max_tokens_is_exact_under_both_names(front: RunningFront, most: int) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        completion = chat(front, "count", temperature=0, **{name: most})
        assert completion.usage is not None
        assert completion.usage.completion_tokens == most
        assert completion.choices[0].finish_reason == "length"


def test_a_stream_joins_to_the_whole_answer(front: RunningFront) -> None:
    whole = chat(front, "stream me", temperature=0, max_tokens=40)
    chunks = stream(front, "stream me", temperature=0, max_tokens=40)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert streamed_text(chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_where_it_was_asked_for(front: RunningFront) -> None:
    chunks = stream(front, "count me", temperature=0, max_tokens=5, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 5
    statistics = chunks[-1].model_extra["statistics"] if chunks[-1].model_extra else {}
    assert statistics["generated_tokens"] == 5
    assert statistics["prompt_rate"] > 0
    assert 0 < statistics["first_token"] < 10
    assert statistics["memory"] > 0


def test_an_end_token_stops_and_is_no_text(front: RunningFront, greedy: Greedy) -> None:
    message, expected = next(
        (message, found)
        for message in map(str, range(200))
        if (found := greedy(message, 60)).reason == "stop" and len(found.tokens) > 2
    )
    completion = chat(front, message, temperature=0, max_tokens=60)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].message.content == expected.text
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(expected.tokens) + 1
    on = chat(front, message, temperature=0, max_tokens=60, extra_body={"ignore_eos": True})
    assert on.usage is not None
    assert on.usage.completion_tokens == 60


def test_stop_strings_end_the_answer_before_themselves(front: RunningFront, greedy: Greedy) -> None:
    text = greedy("stop here", 60).text
    for stop in (text[10:14], [text[20:23], "never there"]):
        first = stop if isinstance(stop, str) else stop[0]
        wanted = text[: text.index(first)]
        whole = chat(front, "stop here", temperature=0, max_tokens=60, stop=stop)
        assert whole.choices[0].message.content == wanted
        assert whole.choices[0].finish_reason == "stop"
        assert streamed_text(stream(front, "stop here", temperature=0, max_tokens=60, stop=stop)) == wanted


def test_a_seed_repeats_and_another_differs(front: RunningFront) -> None:
    once = chat(front, "dice", seed=7, max_tokens=20).choices[0].message.content
    assert chat(front, "dice", seed=7, max_tokens=20).choices[0].message.content == once
    assert chat(front, "dice", seed=8, max_tokens=20).choices[0].message.content != once
    assert chat(front, "dice", max_tokens=20).choices[0].message.content != once


def test_choices_differ_from_each_other_and_repeat_together(front: RunningFront) -> None:
    first = chat(front, "several", n=3, seed=3, max_tokens=16)
    contents = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(contents)) == 3
    assert first.usage is not None
    assert first.usage.completion_tokens <= 48
    chunks = stream(front, "several", n=3, seed=3, max_tokens=16)
    assert [streamed_text(chunks, index) for index in range(3)] == contents
    assert contents[0] == chat(front, "several", seed=3, max_tokens=16).choices[0].message.content


def test_logprobs_are_the_models_own(front: RunningFront, greedy: Greedy, text: Text) -> None:
    expected = greedy("scores", 6)
    completion = chat(front, "scores", temperature=0, max_tokens=6, logprobs=True, top_logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(expected.tokens) == 6
    prefix = list(expected.prompt)
    for entry, token in zip(logprobs.content, expected.tokens, strict=True):
        logits = [float(value) for value in logits_after(prefix)]
        norm = math.log(sum(math.exp(value) for value in logits))
        best = sorted(range(len(logits)), key=lambda index: -logits[index])[:3]
        assert entry.logprob == pytest.approx(logits[token] - norm, abs=1e-5)
        assert bytes(entry.bytes or []) == text.token_bytes(token)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            [logits[index] - norm for index in best], abs=1e-5
        )
        prefix.append(token)
    chunks = stream(front, "scores", temperature=0, max_tokens=6, logprobs=True, top_logprobs=3)
    streamed = [
        entry.logprob
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert streamed == [entry.logprob for entry in logprobs.content]


def test_logit_bias_can_force_and_forbid(front: RunningFront, greedy: Greedy, text: Text) -> None:
    token = greedy("bias", 1).tokens[0]
    banned = chat(front, "bias", temperature=0, max_tokens=1, logit_bias={str(token): -100})
    assert banned.choices[0].message.content != text.decode([token])
    forced = chat(front, "bias", temperature=0, max_tokens=5, logit_bias={"270": 100})
    assert forced.choices[0].message.content == text.decode([270] * 5)
    penalised = chat(front, "bias", temperature=0, max_tokens=5, logit_bias={"270": 30}, frequency_penalty=2.0)
    assert penalised.choices[0].message.content == text.decode([270] * 5)


def test_greedy_by_filters(front: RunningFront, greedy: Greedy) -> None:
    expected = greedy("filters", 8).text
    for options in ({"top_p": 0.0}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}):
        assert chat(front, "filters", max_tokens=8, **options).choices[0].message.content == expected


def test_the_next_turn_reads_the_last_one_from_the_cache(front: RunningFront, text: Text) -> None:
    messages = user("tell me a long story about caches")
    first = front.openai.chat.completions.create(
        model="fake", messages=messages, temperature=0, max_tokens=30, logit_bias={"65": 30}
    )
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, *user("and then?")]
    second = front.openai.chat.completions.create(model="fake", messages=messages, temperature=0, max_tokens=3)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert first.usage.prompt_tokens < cached < second.usage.prompt_tokens


def test_answers_of_concurrent_requests_are_those_they_get_alone(front: RunningFront) -> None:
    prompts = [f"request number {index} " * (1 + index) for index in range(6)]
    options: dict[str, Any] = {"max_tokens": 25, "seed": 11, "temperature": 0.8, "top_p": 0.95}
    alone = [chat(front, prompt, **options).choices[0].message.content for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: streamed_text(stream(front, prompt, **options)), prompts))
    assert together == alone


def test_content_parts_and_the_developer_role(front: RunningFront) -> None:
    parts: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    plain: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    create = front.openai.chat.completions.create
    one = create(model="fake", messages=parts, temperature=0, max_tokens=8)
    two = create(model="fake", messages=plain, temperature=0, max_tokens=8)
    assert one.choices[0].message.content == two.choices[0].message.content


def test_models_are_those_of_the_store(front: RunningFront) -> None:
    assert [model.id for model in front.openai.models.list()] == sorted(FAKE_MODELS)
    assert front.openai.models.retrieve("fake").object == "model"
    assert httpx.get(f"{front.url}/v1/models/").json() == httpx.get(f"{front.url}/v1/models").json()
