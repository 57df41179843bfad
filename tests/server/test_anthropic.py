"""Anthropic's own client against a real front, with a model that says what it is told to."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from tests.server.running_front import FAKE_MODELS, RunningFront

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
LONGEST_PART = len('{"city": "')  # of a call's input: a key with the beginning of its value
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def client(front: RunningFront, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0, timeout=60, **options)


def told(script: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": f"Say [[[{script}]]]"}]}]


def ask(front: RunningFront, messages: list[Any], **options: Any) -> anthropic.types.Message:
    """The message to a script, which is the same streamed."""
    options = {"model": "scripted", "max_tokens": 400, **options}
    whole = client(front).messages.create(messages=messages, **options)
    with client(front).messages.stream(messages=messages, **options) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    for each in (whole, *events):
        type(each).model_validate(each.to_dict())  # the client itself is content with less than its own types say
    (counts,) = (event.model_dump() for event in events if event.type == "message_delta")
    assert [without_id(block) for block in streamed.content] == [without_id(block) for block in whole.content]
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens == counts["statistics"]["generated_tokens"]
    parts = [event.partial_json for event in events if event.type == "input_json"]
    assert all(len(part) <= LONGEST_PART for part in parts)
    return whole


def without_id(block: Any) -> dict[str, Any]:
    return {name: value for name, value in block.model_dump().items() if name != "id"}


LONG = f"<think>\n{'Hm. ' * 20}</think>\n\nFour."


@pytest.mark.parametrize(("budget", "thought"), [(10, "Hm. Hm. Hm"), (0, ""), (1024, ("Hm. " * 20).strip())])
def test_thinking_is_brought_to_its_end(front: RunningFront, budget: int, thought: str) -> None:
    """Below the service's least budget, and above `max_tokens`, too."""
    message = ask(front, told(LONG), thinking={"type": "enabled", "budget_tokens": budget})
    assert [block.thinking for block in message.content if block.type == "thinking"] == [thought] * bool(thought)
    assert [block.text for block in message.content if block.type == "text"] == ["Four."]
    assert message.stop_reason == "end_turn"


def test_a_budget_means_nothing_to_a_model_that_cannot_think(front: RunningFront) -> None:
    body: dict[str, Any] = {"model": "fake", "max_tokens": 5, "messages": told("x"), "thinking": THINKING}
    response = httpx.post(f"{front.url}/v1/messages", json=body)
    assert response.status_code == 200
    assert response.headers["X-Freetoken-Ignored"] == "thinking.budget_tokens"


def test_text_comes_as_one_block(front: RunningFront) -> None:
    message = ask(front, told("Hello there."), system="Be brief.")
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "Hello there.")]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len("Hello there.") + 1


def test_reasoning_text_and_calls_come_as_blocks_in_order(front: RunningFront) -> None:
    message = ask(front, told(f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}"), tools=[WEATHER], thinking=THINKING)
    thinking, text, call = message.content
    assert (thinking.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thinking.thinking, text.text, call.name, call.input) == ("Hm.", "I look.", "get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    assert call.id.startswith("toolu_")


def test_a_conversation_goes_on_after_a_call(front: RunningFront) -> None:
    first = ask(front, told(f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}"), tools=[WEATHER], thinking=THINKING)
    call = first.content[-1]
    assert call.type == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny."}]},
        {"type": "text", "text": "Now say [[[Good.]]]", "cache_control": {"type": "ephemeral"}},
    ]
    script = f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}"
    messages = [*told(script), {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client(front).messages.create(model="scripted", max_tokens=50, messages=messages, tools=[WEATHER])
    assert [block.text for block in second.content if block.type == "text"] == ["Good."]
    assert (second.usage.cache_read_input_tokens or 0) > 0


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_required(front: RunningFront, choice: Any) -> None:
    message = ask(front, told(PARIS), tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in message.content] == ["tool_use"]


def test_an_answer_goes_on_after_what_it_is_given(front: RunningFront) -> None:
    message = ask(front, [*told("One, two, three"), {"role": "assistant", "content": "One, two"}])
    assert [block.text for block in message.content if block.type == "text"] == [", three"]


def test_stop_sequences_are_told(front: RunningFront) -> None:
    message = ask(front, told("One. Two. Three."), stop_sequences=["Two"])
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == "Two"
    assert [block.text for block in message.content if block.type == "text"] == ["One. "]


def test_the_limit_is_told(front: RunningFront) -> None:
    message = ask(front, told("One, two, three"), max_tokens=3)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 3


def test_a_call_that_is_cut_off_has_the_input_that_came(front: RunningFront) -> None:
    message = ask(front, told(PARIS), tools=[WEATHER], max_tokens=PARIS.index("ris"))
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"city": "Pa"}]
    assert message.stop_reason == "max_tokens"


def test_tokens_are_counted_as_the_prompt_has_them(front: RunningFront) -> None:
    messages, tools = told("x"), [WEATHER]
    counted = client(front).messages.count_tokens(model="scripted", messages=messages, tools=tools).input_tokens
    usage = ask(front, messages, tools=tools).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_what_changes_nothing_is_named(front: RunningFront) -> None:
    body = {
        "model": "scripted",
        "max_tokens": 5,
        "messages": told("x"),
        "metadata": {"user_id": "me"},
        "tools": [{**WEATHER, "type": None}, {"type": "web_search_20250305", "name": "web_search"}],
        "some_beta": True,
    }
    response = httpx.post(f"{front.url}/v1/messages?beta=true", json=body)
    assert response.status_code == 200
    assert response.headers["X-Freetoken-Ignored"] == "metadata, some_beta, tools[1]"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"system": 5}, "system"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "x"}, {"name": "f", "input_schema": []}]}, "tools[1].input_schema"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": "1024"}}, "thinking.budget_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": [1]}, "stop_sequences"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_a_bad_member_is_named(front: RunningFront, change: dict[str, Any], said: str) -> None:
    body = {"model": "scripted", "max_tokens": 5, "messages": told("x"), **change}
    response = httpx.post(f"{front.url}/v1/messages", json=body)
    assert response.status_code == 400
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert answer["error"]["message"].startswith(f"{said}: ")


def test_errors_are_those_of_the_client(front: RunningFront) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client(front).messages.create(model="nobody", max_tokens=5, messages=told("x"))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: its 5"):
        client(front).messages.create(model="fake", max_tokens=5, messages=told("x" * 5_000))


class Pet(BaseModel):
    """What an answer is to be."""

    kind: Literal["cat", "dog"]
    age: int | None


def test_an_answer_follows_the_schema_that_the_client_makes_of_a_class(front: RunningFront) -> None:
    """The fake's logits are noise, of which other seeds may want more members than there are tokens."""
    options: Any = {"model": "fake", "max_tokens": 300, "messages": told("x")}
    seed = {"seed": 1}
    assert isinstance(client(front).messages.parse(**options, output_format=Pet, extra_body=seed).parsed_output, Pet)
    older = {"output_format": {"type": "json_schema", "schema": Pet.model_json_schema()}}
    message = client(front).messages.create(**options, extra_body={**older, **seed})
    (block,) = message.content
    assert block.type == "text"
    Pet.model_validate_json(block.text)


def test_models_are_listed(front: RunningFront) -> None:
    listed = {model.id: model for model in client(front).models.list()}
    assert sorted(listed) == sorted(FAKE_MODELS)
    model = client(front).models.retrieve("fake")
    assert (model.type, model.display_name, model.created_at) == ("model", "fake", listed["fake"].created_at)
    assert model.created_at.timestamp() > 0
    type(model).model_validate(model.to_dict())


def test_a_tool_loop_of_the_client_keeps_its_conversation(front: RunningFront) -> None:
    """It asks the server to hold the conversation, and sends all of it once it is told that nobody does."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"Sunny in {city}."

    script = f"{PARIS}]]] [[[{PARIS.replace('Paris', 'Oslo')}]]] [[[Both are sunny."
    options: Any = {"model": "scripted", "max_tokens": 400, "tools": [get_weather]}
    messages = list(client(front).beta.messages.tool_runner(**options, messages=told(script)))
    assert [message.stop_reason for message in messages] == ["tool_use", "tool_use", "end_turn"]
    assert [block.text for block in messages[-1].content if block.type == "text"] == ["Both are sunny."]
