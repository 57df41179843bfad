"""Answers that follow a schema: of a model that says anything, and of one that says what it is told to."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running_front import RunningFront, alive, eventually, saying

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Paris"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "days", "sunny"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
TOOL = {"type": "function", "function": {"name": "plan", "parameters": CITY}}


def check(text: str | None) -> None:
    value = json.loads(text or "")
    assert set(value) == {"city", "days", "sunny"}
    assert value["city"] in ("Oslo", "Paris")
    assert 1 <= value["days"] <= 20
    assert isinstance(value["sunny"], bool)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_model_would_say_its_answer_follows_the_schema(front: RunningFront, seed: int) -> None:
    """The fake's logits are noise, so without a grammar this would take for ever."""
    options: Any = {"model": "fake", "messages": saying("x"), "seed": seed, "max_tokens": 300, "response_format": FORM}
    choices = front.openai.chat.completions.create(**options, n=2).choices
    for choice in choices:
        assert choice.finish_reason == "stop"
        check(choice.message.content)


def test_any_object_is_an_object(front: RunningFront) -> None:
    options: Any = {"model": "scripted", "messages": saying('{"a": [1, 2]} and more'), "max_tokens": 200}
    answer = front.openai.chat.completions.create(**options, response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content or "") == {"a": [1, 2]}


def test_thinking_before_the_answer_is_free(front: RunningFront) -> None:
    script = '<think>\nHm {.\n</think>{"city": "Oslo", "days": 3, "sunny": true}'
    options: Any = {"model": "scripted", "messages": saying(script), "max_tokens": 200, "response_format": FORM}
    message = front.openai.chat.completions.create(**options, reasoning_effort="high").choices[0].message
    assert (message.model_extra or {})["reasoning_content"] == "Hm {."
    check(message.content)


def test_a_tool_can_be_called_before_an_answer_of_a_form(front: RunningFront) -> None:
    """As agents ask that have tools and want their last answer to follow a schema."""
    call = '<tool_call>\n{"name": "plan", "arguments": {}}\n</tool_call>'
    options: Any = {"model": "scripted", "max_tokens": 200, "response_format": FORM, "tools": [TOOL]}
    messages = saying(f'{call}]]] [[[{{"city": "Oslo", "days": 3, "sunny": true}} and more')
    for before in ("", "<think>\nHm.\n</think>\n\n"):
        effort = {"reasoning_effort": "high"} if before else {}
        asked = [{**messages[0], "content": messages[0]["content"].replace("[[[", f"[[[{before}")}]
        choice = front.openai.chat.completions.create(messages=asked, **options, **effort).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        (called,) = choice.message.tool_calls
        result = {"role": "tool", "tool_call_id": called.id, "content": "made"}
        asked += [choice.message, result]
        check(front.openai.chat.completions.create(messages=asked, **options, **effort).choices[0].message.content)


def test_the_same_over_the_other_interfaces(front: RunningFront) -> None:
    body: dict[str, Any] = {"model": "fake", "max_output_tokens": 300, "input": "x"}
    form = {"type": "json_schema", "name": "city", "schema": CITY}
    response = httpx.post(f"{front.url}/v1/responses", json={**body, "text": {"format": form}}, timeout=60).json()
    check(response["output"][0]["content"][0]["text"])
    body = {"model": "fake", "messages": saying("x"), "stream": False, "options": {"num_predict": 300}}
    check(httpx.post(f"{front.url}/api/chat", json={**body, "format": CITY}, timeout=60).json()["message"]["content"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "plan"}}])
def test_a_required_call_has_arguments_of_its_schema(front: RunningFront, choice: Any) -> None:
    """Of a model that would rather say something else; `now` takes anything, so it is not offered."""
    options: Any = {"model": "scripted", "messages": saying("No."), "temperature": 1.0, "seed": 1, "max_tokens": 400}
    answer = front.openai.chat.completions.create(**options, tools=[TOOL], tool_choice=choice).choices[0]
    assert answer.message.tool_calls is not None
    assert answer.finish_reason == "tool_calls"
    for call in answer.message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "plan"
        check(call.function.arguments)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.schema"),
        ({"type": "json_schema", "json_schema": []}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}, "response_format.json_schema.schema"),
        ("json", "response_format"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(front: RunningFront, form: Any, said: str) -> None:
    body = {"model": "fake", "messages": saying("x"), "response_format": form}
    response = httpx.post(f"{front.url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == said


ODD = {"type": "string", "pattern": "^(?!a)[a-c]{1,3}$"}
HARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kinds": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2, "uniqueItems": True},
        "pattern": ODD,
        "size": {"oneOf": [{"type": "integer", "maximum": 5, "minimum": 0}, {"const": 1.5}]},
    },
    "required": ["kinds", "pattern", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("strict", [True, False])
def test_what_a_grammar_cannot_say_is_refused_where_it_has_to_be_followed(front: RunningFront, strict: bool) -> None:
    """Sets and patterns that look ahead are in schemas that pydantic makes."""
    form = {"type": "json_schema", "json_schema": {"name": "hard", "schema": HARD, "strict": strict}}
    script = '{"kinds": ["x", "x"], "pattern": "abcd", "size": 1.5}'
    body = {"model": "scripted", "messages": saying(f"{script} and more"), "response_format": form, "max_tokens": 100}
    response = httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=60)
    if strict:
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "response_format.json_schema.schema")
        assert "Without `strict`" in error["remedy"]
    else:
        assert response.json()["choices"][0]["message"]["content"] == script
        assert response.headers["X-Freetoken-Ignored"] == "response_format.json_schema.schema"


def test_one_of_several_schemas_is_any_of_them(front: RunningFront) -> None:
    """As pydantic's unions that a member tells apart, which look alike to a grammar."""
    schema = {
        "oneOf": [{"type": "integer", "minimum": 7, "maximum": 7}, {"type": "number", "minimum": 7, "maximum": 7}]
    }
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema, "strict": True}}
    body = {"model": "scripted", "messages": saying("7"), "response_format": form, "max_tokens": 20}
    response = httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=60)
    assert response.json()["choices"][0]["message"]["content"] == "7"
    assert "X-Freetoken-Ignored" not in response.headers


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "plan"}}])
def test_a_tool_may_say_what_a_grammar_cannot(front: RunningFront, choice: Any) -> None:
    tool = {"type": "function", "function": {"name": "plan", "parameters": HARD}}
    script = '<tool_call>\n{"name": "plan", "arguments": {"kinds": [], "pattern": "abcd", "size": 2}}\n</tool_call>'
    options: Any = {"model": "scripted", "messages": saying(script), "tools": [tool], "max_tokens": 200}
    (call,) = front.openai.chat.completions.create(**options, tool_choice=choice).choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"kinds": [], "pattern": "abcd", "size": 2}


def child_of(worker: int) -> int:
    """The process that follows the worker's grammars."""
    (child,) = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return int(child)


def test_nothing_that_follows_grammars_outlives_its_worker(own_front: Callable[..., RunningFront]) -> None:
    """Nor what is in the middle of a hard one, and reads nothing meanwhile: then it stands still here."""
    front = own_front()

    def end_in_the_middle(worker: int) -> None:
        os.kill(child_of(worker), signal.SIGSTOP)
        os.kill(worker, signal.SIGTERM)

    def kill(worker: int) -> None:
        os.kill(worker, signal.SIGKILL)

    for end in (kill, end_in_the_middle, lambda _: front.control("stop", model="fake")):
        body = {"model": "fake", "messages": saying("x"), "max_tokens": 3, "response_format": FORM}
        assert httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        (worker,) = front.workers()
        follower = child_of(worker)
        end(worker)
        assert eventually(lambda follower=follower: not alive(follower))


def test_who_waits_for_a_grammar_can_leave(own_front: Callable[..., RunningFront]) -> None:
    """While the process that reads it stands still, others are answered, and it counts as waiting until it leaves."""
    front = own_front()
    body = {"model": "fake", "messages": saying("x"), "max_tokens": 3}
    formed = {**body, "response_format": FORM}
    assert httpx.post(f"{front.url}/v1/chat/completions", json=formed, timeout=60).status_code == 200
    (worker,) = front.workers()
    follower = child_of(worker)
    os.kill(follower, signal.SIGSTOP)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{front.url}/v1/chat/completions", json=formed, timeout=1.0)
    assert httpx.post(f"{front.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    assert eventually(lambda: front.stats()["waiting"] == 0)
    os.kill(follower, signal.SIGCONT)
    assert httpx.post(f"{front.url}/v1/chat/completions", json=formed, timeout=60).status_code == 200


def test_a_stream_goes_on_while_a_hard_schema_is_looked_at(front: RunningFront) -> None:
    """Looking at this one takes a second or two; it is refused then."""
    schema = {"enum": list(range(100_000))}
    body = {"model": "fake", "messages": saying("x"), "response_format": {"type": "json_schema", "schema": schema}}
    with (
        front.openai.chat.completions.create(
            model="endless", messages=saying("x"), stream=True, max_tokens=3000
        ) as stream,
        ThreadPoolExecutor() as pool,
    ):
        next(chunks := iter(stream))
        began, waits = time.monotonic(), [0.0]
        asked = pool.submit(httpx.post, f"{front.url}/v1/chat/completions", json=body, timeout=60)
        while not asked.done():
            before = time.monotonic()
            next(chunks)
            waits.append(time.monotonic() - before)
        took = time.monotonic() - began
    assert asked.result().json()["error"]["param"] == "response_format.schema"
    assert max(waits) < took / 2, f"{max(waits):.2f} of {took:.2f} s"
