"""Reasoning that never ends by itself, over OpenAI's interfaces: brought to its end after so many tokens."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.running_front import RunningFront

THOUGHT = "Hm. " * 20
ANSWER = "Four."
BUDGETS = ["thinking_token_budget", "thinking_budget"]


def chat(
    front: RunningFront, body: dict[str, Any], script: str = f"<think>\n{THOUGHT}</think>\n\n{ANSWER}"
) -> httpx.Response:
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"Say [[[{script}]]]"}],
        "max_tokens": 300,
        "chat_template_kwargs": {"enable_thinking": True},  # the prompt begins the thought
        **body,
    }
    return httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=60)


def choices(response: httpx.Response) -> list[tuple[str, str, str]]:
    assert response.status_code == 200, response.text
    found = response.json()["choices"]
    return [(c["message"].get("reasoning_content", ""), c["message"]["content"], c["finish_reason"]) for c in found]


@pytest.mark.parametrize("name", BUDGETS)
def test_a_thought_ends_after_so_many_tokens(front: RunningFront, name: str) -> None:
    response = chat(front, {name: 10, "n": 2})
    assert choices(response) == [("Hm. Hm. Hm", ANSWER, "stop")] * 2
    usage = response.json()["usage"]
    reasoned = 10 + len("\n</think>")
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * reasoned}
    assert usage["completion_tokens"] == 2 * (reasoned + len(f"\n\n{ANSWER}") + 1)


def test_the_same_in_a_stream(front: RunningFront) -> None:
    lines = chat(front, {"thinking_token_budget": 10, "stream": True}).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm. Hm. Hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER


def test_a_thought_that_the_model_opens_itself_is_bounded_too(front: RunningFront) -> None:
    body = {"thinking_budget": 4, "chat_template_kwargs": {}}
    assert choices(chat(front, body, f"\n<think>{THOUGHT}</think>\n\n{ANSWER}")) == [("Hm.", ANSWER, "stop")]


def test_what_ends_by_itself_and_what_only_looks_like_a_thought_is_left_alone(front: RunningFront) -> None:
    script = f"<think>\nHm.</think>\n\n<b> {ANSWER} <think>{THOUGHT}"
    bounded = choices(chat(front, {"thinking_budget": 3}, script))
    assert bounded == choices(chat(front, {}, script))
    assert bounded[0][1].startswith(f"<b> {ANSWER} <think>")


def test_reasoning_that_is_left_in_the_text_is_bounded(front: RunningFront) -> None:
    told = choices(chat(front, {"thinking_budget": 3, "reasoning_format": "none"}))
    assert told == [("", f"Hm.\n</think>\n\n{ANSWER}", "stop")]


def test_a_grammar_begins_behind_the_bounded_thought(front: RunningFront) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [{"a": 1}]}}}
    body = {"thinking_budget": 3, "response_format": form}
    thought, content, reason = choices(chat(front, body, f'<think>\n{THOUGHT}</think>\n\n{{"a": 1}} and more'))[0]
    assert (thought, json.loads(content), reason) == ("Hm.", {"a": 1}, "stop")


def test_a_bound_leaves_the_rest_of_a_drawn_answer_alone(front: RunningFront) -> None:
    """One that is never reached: the same tokens by the same seed."""
    body = {"model": "scripted", "temperature": 1.5, "seed": 3}
    assert choices(chat(front, {**body, "thinking_budget": 1000})) == choices(chat(front, body))


def test_responses_are_bounded(front: RunningFront) -> None:
    script = f"Say [[[<think>{THOUGHT}</think>\n\n{ANSWER}]]]"
    body = {"model": "scripted", "input": script, "thinking_token_budget": 4, "max_output_tokens": 300}
    response = httpx.post(f"{front.url}/v1/responses", json=body, timeout=60)
    assert "X-Freetoken-Ignored" not in response.headers
    reasoning, message = response.json()["output"]
    assert (reasoning["content"][0]["text"], message["content"][0]["text"]) == ("Hm.", ANSWER)
    details = response.json()["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": 4 + len("\n</think>")}


@pytest.mark.parametrize("wrong", [-1, "10", 1.5, True])
def test_a_budget_that_is_none_is_refused(front: RunningFront, wrong: Any) -> None:
    response = chat(front, {"thinking_token_budget": wrong})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking_token_budget")


def test_a_model_that_cannot_think_is_left_alone_and_the_answer_says_so(front: RunningFront) -> None:
    response = chat(front, {"model": "fake", "thinking_budget": 3, "max_tokens": 5})
    assert response.status_code == 200
    assert response.headers["X-Freetoken-Ignored"] == "thinking_budget"
