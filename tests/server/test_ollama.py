"""Ollama's own client against a real front, with models that say what they are told to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.server.running_front import RunningFront, saying

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
GREEDY = {"temperature": 0, "num_predict": 400}


def client(front: RunningFront) -> ollama.Client:
    return ollama.Client(host=front.url, timeout=60)


def chat(front: RunningFront, messages: list[Any], **options: Any) -> ollama.ChatResponse:
    """The answer to a script, which is the same streamed."""
    options = {"model": "scripted", "messages": messages, "options": GREEDY, **options}
    whole = client(front).chat(**options)
    parts = list(client(front).chat(**options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == (whole.message.content or "")
    assert "".join(part.message.thinking or "" for part in parts) == (whole.message.thinking or "")
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert calls == [call.function for call in whole.message.tool_calls or ()]
    assert [part.done for part in parts] == [*[False] * (len(parts) - 1), True]
    assert (parts[-1].done_reason, parts[-1].eval_count) == (whole.done_reason, whole.eval_count)
    return whole


def test_a_chat_is_answered_with_counts_and_times(front: RunningFront) -> None:
    answer = chat(front, [{"role": "system", "content": "Be brief."}, *saying("Hello there.")])
    assert answer.message.content == "Hello there."
    assert (answer.done_reason, answer.eval_count) == ("stop", len("Hello there.") + 1)
    assert (answer.prompt_eval_count or 0) > 20
    assert (answer.total_duration or 0) >= (answer.eval_duration or 0) > 0


def test_every_object_is_one_line_for_clients_that_know_the_line_breaks_of_unicode(front: RunningFront) -> None:
    """JSON may hold them as they are, and this client ends its lines there."""
    said = "one\x85two\u2028three\u2029four\x0bfive\x1esix"
    assert chat(front, saying(said)).message.content == said


def test_thinking_and_calls_are_apart(front: RunningFront) -> None:
    answer = chat(front, saying(f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}"), tools=[WEATHER], think=True)
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "I look.")
    assert answer.message.tool_calls is not None
    assert answer.message.tool_calls[0].function.arguments == {"city": "Paris"}
    messages = [*saying("x"), answer.message, {"role": "tool", "tool_name": "get_weather", "content": "[[[Sunny.]]]"}]
    assert chat(front, messages, tools=[WEATHER]).message.content == "Sunny."


def test_calls_come_whole_and_numbered_in_a_stream(front: RunningFront) -> None:
    body = {"model": "scripted", "messages": saying(f"{PARIS}\n{PARIS}"), "options": GREEDY, "tools": [WEATHER]}
    parts = map(json.loads, httpx.post(f"{front.url}/api/chat", json=body).text.splitlines())
    calls = [call["function"] for part in parts for call in part["message"].get("tool_calls", ())]
    assert calls == [{"index": index, "name": "get_weather", "arguments": {"city": "Paris"}} for index in range(2)]


def test_thinking_is_switched_off(front: RunningFront) -> None:
    answer = chat(front, saying("<think>\n\n</think>\n\nTwo"), think=False)
    assert (answer.message.thinking, answer.message.content) == (None, "Two")


def test_options_are_those_of_ollama(front: RunningFront) -> None:
    limited = chat(front, saying("One, two, three"), options={"num_predict": 3, "num_ctx": 2048, "repeat_penalty": 1.0})
    assert (limited.message.content, limited.done_reason) == ("One", "length")
    stopped = chat(front, saying("One, two, three"), options={**GREEDY, "stop": ["two"]})
    assert stopped.message.content == "One, "


def test_a_prompt_is_generated_from(front: RunningFront) -> None:
    options: Any = {"model": "scripted", "prompt": "Say [[[Hello.]]]", "options": GREEDY}
    assert client(front).generate(**options, system="Be brief.").response == "Hello."
    parts = list(client(front).generate(**options, stream=True))
    assert "".join(part.response for part in parts) == "Hello."
    raw = "<|im_start|>user\n[[[Raw.]]]<|im_end|>\n<|im_start|>assistant\n"
    assert client(front).generate(**{**options, "prompt": raw}, raw=True).response == "Raw."


def test_log_probabilities_are_those_of_openais_interface(front: RunningFront) -> None:
    asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    theirs = front.openai.chat.completions.create(**asked, temperature=0, max_tokens=9, logprobs=True, top_logprobs=2)
    assert theirs.choices[0].logprobs is not None
    expected = [
        (each.token, each.logprob, [(other.token, other.logprob) for other in each.top_logprobs])
        for each in theirs.choices[0].logprobs.content or ()
    ]
    options: Any = {**asked, "options": {"temperature": 0, "num_predict": 9}, "logprobs": True, "top_logprobs": 2}
    whole, parts = client(front).chat(**options), list(client(front).chat(**options, stream=True))
    for told in (whole.logprobs or (), [each for part in parts for each in part.logprobs or ()]):
        assert expected == [
            (each.token, each.logprob, [(other.token, other.logprob) for other in each.top_logprobs or ()])
            for each in told
        ]
    assert len(expected) == 9


def test_the_default_tag_means_nothing(front: RunningFront) -> None:
    assert chat(front, saying("Hello."), model="scripted:latest").message.content == "Hello."


def test_the_version_and_the_loaded_models_are_told(front: RunningFront) -> None:
    chat(front, saying("x"))
    version = httpx.get(f"{front.url}/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4], "or VS Code refuses to go on"
    loaded = {model.model: model for model in client(front).ps().models}
    assert (loaded["scripted"].size or 0) > 0
    assert loaded["scripted"].expires_at is not None


def test_a_model_is_loaded_and_unloaded_without_a_word(own_front: Callable[..., RunningFront]) -> None:
    front = own_front()
    assert client(front).generate(model="fake").done_reason == "load"
    assert [model.model for model in client(front).ps().models] == ["fake"]
    assert client(front).generate(model="fake", keep_alive=0).done_reason == "unload"
    assert client(front).ps().models == []
    client(front).generate(model="fake", keep_alive="1m30s")  # as ollama's own program writes it
    (model,) = client(front).ps().models
    assert model.expires_at is not None
    assert 80 < model.expires_at.timestamp() - time.time() < 91
    answer = client(front).chat(model="fake", messages=saying("x"), keep_alive=0, options={"num_predict": 2})
    assert answer.eval_count == 2
    deadline = time.monotonic() + 10
    while client(front).ps().models and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client(front).ps().models == []


def test_loaded_models_are_listed_whatever_becomes_of_them(own_front: Callable[..., RunningFront], store: Path) -> None:
    """One stays loaded beyond any date, and the files of another are removed."""
    front = own_front()
    for seconds in (1e15, 10**400):
        answer = httpx.post(f"{front.url}/api/generate", json={"model": "fake", "keep_alive": seconds})
        assert answer.status_code == 200
    client(front).generate(model="other")
    manifest = store / "other" / "ftw.json"
    manifest.rename(manifest.with_suffix(".away"))
    try:
        (model,) = client(front).ps().models
    finally:
        manifest.with_suffix(".away").rename(manifest)
    assert model.model == "fake"
    assert model.expires_at is not None
    assert model.expires_at.timestamp() > time.time() + 10**9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": "x"}, "messages"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"think": 3}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"format": "xml"}, "format"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_a_bad_member_is_named(front: RunningFront, change: dict[str, Any], said: str) -> None:
    response = httpx.post(f"{front.url}/api/chat", json={"model": "scripted", "messages": saying("x"), **change})
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{said}: ")


def test_an_unknown_model_is_404(front: RunningFront) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client(front).chat(model="nobody", messages=saying("x"))
    assert caught.value.status_code == 404


def test_a_model_that_does_not_load_says_why(front: RunningFront) -> None:
    with httpx.stream("POST", f"{front.url}/api/chat", json={"model": "broken", "messages": saying("x")}) as response:
        assert response.status_code == 500
        assert "The bank is short." in json.loads(response.read())["error"]


def test_models_that_cannot_be_opened_are_not_listed(front: RunningFront) -> None:
    assert client(front).list().models == []
