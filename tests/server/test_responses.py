"""The official client's responses against a real front, with a model that says what it is told to."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from engine.front.responses_api.requests import read_response
from engine.front.responses_api.stored import MOST_RESPONSES, StoredResponses
from tests.server.running_front import RunningFront

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
VOLATILE = {"id", "call_id"}


def ask(front: RunningFront, script: str | list[Any], **options: Any) -> Response:
    """The response to a script, which is the same streamed."""
    said = f"Say [[[{script}]]]" if isinstance(script, str) else script
    options = {"model": "scripted", "input": said, "max_output_tokens": 400, **options}
    whole = front.openai.responses.create(**options)
    events = list(front.openai.responses.create(**options, stream=True))
    for told in (whole, *events):
        type(told).model_validate(told.to_dict())  # the client itself is content with less than its own types say
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert without_ids(last.response.output) == without_ids(whole.output)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    arguments = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert arguments == [item.arguments for item in whole.output if item.type == "function_call"]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == "".join(arguments)
    assert all(len(delta) <= len('{"city": "') for delta in deltas)  # a key comes with the beginning of its value
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert without_ids(done) == without_ids(whole.output)
    return whole


def without_ids(items: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.model_dump().items() if name not in VOLATILE} for item in items]


def test_text_comes_as_a_message(front: RunningFront) -> None:
    response = ask(front, "Hello there.", instructions="Be brief.")
    assert (response.output_text, response.status) == ("Hello there.", "completed")
    assert response.usage is not None
    assert response.usage.output_tokens == len("Hello there.") + 1


def test_reasoning_text_and_calls_come_as_items_in_order(front: RunningFront) -> None:
    response = ask(front, f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}", tools=[WEATHER], reasoning={"effort": "high"})
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    reasoning, _, call = response.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or ()] == ["Hm."]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')


THOUGHT = "<think>\nHm. So.\n</think>\n\nHello."
REASONING_EVENTS = {
    None: ("response.content_part", "response.reasoning_text"),
    "auto": ("response.reasoning_summary_part", "response.reasoning_summary_text"),
}


@pytest.mark.parametrize("summary", REASONING_EVENTS)
def test_reasoning_is_shown_as_a_summary_to_who_asks_for_one(front: RunningFront, summary: Any) -> None:
    """Codex and the AI SDK show summaries alone, and ask for them; there is nothing else here that could be one."""
    options: Any = {"model": "scripted", "input": f"Say [[[{THOUGHT}]]]", "reasoning": {"summary": summary}}
    ask(front, THOUGHT, reasoning={"summary": summary})
    events: list[Any] = list(front.openai.responses.create(**options, stream=True))
    part, text = REASONING_EVENTS[summary]
    item = events[2].item
    mine = [event for event in events if getattr(event, "item_id", "") == item.id]
    kinds = [event.type for event in mine]
    assert kinds == [f"{part}.added", *[f"{text}.delta"] * (len(mine) - 3), f"{text}.done", f"{part}.done"]
    assert "".join(event.delta for event in mine[1:-2]) == mine[-2].text == mine[-1].part.text == "Hm. So."
    assert mine[0].part.text == ""
    done = events[-1].response
    assert done.reasoning.summary == summary
    (reasoning, _) = done.output
    shown, other = (reasoning.summary, reasoning.content) if summary else (reasoning.content, reasoning.summary)
    assert [each.text for each in shown] == ["Hm. So."]
    assert not other, "or it would be shown twice"


@pytest.mark.parametrize("options", [{"store": False}, {"include": ["reasoning.encrypted_content"]}])
@pytest.mark.parametrize("summary", ["detailed", None])
def test_reasoning_comes_back_in_whatever_its_client_keeps(
    front: RunningFront, options: dict[str, Any], summary: Any
) -> None:
    """The AI SDK keeps only what is encrypted, and summaries; where it has neither, it leaves out the item."""
    item = ask(front, THOUGHT, reasoning={"summary": summary}, **options).output[0].to_dict()
    for kept in ("summary" if summary else "content", "encrypted_content"):
        sent = {"type": "reasoning", "id": item["id"], "summary": [], kept: item[kept]}
        (message,) = read_response({"model": "scripted", "input": [sent]}).messages
        assert message["reasoning_content"] == "Hm. So."
        assert ask(front, [sent, {"role": "user", "content": "[[[Bye.]]]"}], **options).output_text == "Bye."
    assert ask(front, THOUGHT).output[0].to_dict()["summary"] == []
    assert "encrypted_content" not in ask(front, THOUGHT).output[0].to_dict()


def test_what_another_server_has_encrypted_is_no_reasoning() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABqFpz"}
    body = {"model": "scripted", "input": [item, {"role": "user", "content": "x"}]}
    assert read_response(body).messages == ({"role": "user", "content": "x"},)


def test_a_conversation_goes_on_from_its_items(front: RunningFront) -> None:
    script = f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}"
    first = ask(front, script, tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": f"Say [[[{script}]]]"}]},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny. [[[Good.]]]"},
    ]
    second = ask(front, items, tools=[WEATHER])
    assert second.output_text == "Good."
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_a_conversation_goes_on_from_a_stored_response(front: RunningFront) -> None:
    first = ask(front, PARIS, tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "[[[Good.]]]"}]
    second = ask(front, output, tools=[WEATHER], previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("Good.", first.id)
    assert front.openai.responses.retrieve(second.id).output_text == "Good."
    front.openai.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        front.openai.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError):
        front.openai.responses.delete(second.id)


def test_a_stored_response_is_not_streamed_again_and_says_so(front: RunningFront) -> None:
    """The client makes nothing of a response where it expects events, and complains of nothing."""
    first = front.openai.responses.create(model="scripted", input="Say [[[Hello.]]]")
    with pytest.raises(openai.BadRequestError, match="stream: a response that was stored"):
        front.openai.responses.retrieve(first.id, stream=True)
    assert front.openai.responses.retrieve(first.id, stream=False).output_text == "Hello."


class City(BaseModel):
    city: str


@pytest.mark.parametrize("summary", REASONING_EVENTS)
def test_the_clients_own_helpers_follow_a_response(front: RunningFront, summary: Any) -> None:
    script = '<think>\nHm.\n</think>\n\n{"city": "Paris"}'
    options: Any = {"model": "scripted", "input": f"[[[{script}]]]", "text_format": City}
    options |= {"reasoning": {"effort": "high", "summary": summary}, "max_output_tokens": 400}
    with front.openai.responses.stream(**options) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == City(city="Paris")
    assert front.openai.responses.parse(**options).output_parsed == City(city="Paris")


def test_what_is_not_to_be_stored_is_not(front: RunningFront) -> None:
    first = ask(front, "Hello.", store=False)
    with pytest.raises(openai.BadRequestError, match="previous_response_id: there is no such response"):
        front.openai.responses.create(model="scripted", input="x", previous_response_id=first.id)


def test_the_oldest_responses_are_forgotten_first() -> None:
    stored = StoredResponses()
    for number in range(MOST_RESPONSES + 3):
        stored.add({"id": str(number), "output": []}, ())
    assert [stored.get(str(number)) is None for number in range(4)] == [True, True, True, False]


def test_what_responses_share_is_held_once() -> None:
    """A single emoji makes every letter of a string four bytes long in memory."""
    stored = StoredResponses()
    inputs = read_response({"model": "scripted", "input": "a" * 1_000_000 + "\N{PARTY POPPER}"}).items
    tracemalloc.start()
    for number in range(MOST_RESPONSES):
        output = [{"id": f"msg_{number}", "type": "message", "role": "assistant", "content": []}]
        stored.add({"id": str(number), "output": output}, inputs)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2_000_000
    assert stored.get("0") is not None
    for number in range(1, MOST_RESPONSES):
        assert stored.remove(str(number))
    first = stored.get("0")
    assert first is not None
    assert first.conversation == (*inputs, *first.response["output"])


def test_items_of_one_id_are_told_apart(front: RunningFront) -> None:
    """A client that turned pages by their ids saw the first of them for ever."""
    said: Any = {"id": "msg_1", "role": "user", "content": "[[[Hello.]]]"}
    first = ask(front, [said, said, {**said, "id": ""}])
    second = ask(front, [{"type": "item_reference", "id": first.output[0].id}, said], previous_response_id=first.id)
    listed = itertools.islice(front.openai.responses.input_items.list(second.id, order="asc", limit=1), 10)
    ids = [item.to_dict()["id"] for item in listed]
    assert len(set(ids)) == len(ids) == 6
    assert (ids[0], ids[3]) == ("msg_1", first.output[0].id)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "id": "rs_1", "summary": None, "content": None},
        {"type": "reasoning", "summary": [{"text": "Hm."}]},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "output_text", "text": "Sunny."}]},
        {"role": "user", "content": "Hello.", "status": ["odd"], "more": {"id": 1}},
    ],
)
def test_what_is_listed_is_as_the_client_knows_it_however_it_came(front: RunningFront, item: Any) -> None:
    response = ask(front, [item, {"role": "user", "content": "[[[Hello.]]]"}])
    for listed in front.openai.responses.input_items.list(response.id).data:
        type(listed).model_validate(listed.to_dict())


def test_what_is_in_an_item_that_nobody_reads_ends_no_stream(front: RunningFront) -> None:
    for depth in range(960, 990):  # the deepest that are read could not be written
        nested = "[" * depth + "]" * depth
        item = f'{{"role": "user", "content": "[[[Hello.]]]", "more": {nested}}}'
        body = f'{{"model": "scripted", "stream": true, "input": [{item}]}}'
        answer = httpx.post(f"{front.url}/v1/responses", content=body, timeout=60)
        assert answer.status_code == 400 or "event: response.completed" in answer.text


def test_what_a_response_was_made_from_is_listed(front: RunningFront) -> None:
    """With all before it; the answers have the ids that they were told with, what was sent has one from now on."""
    first = ask(front, f"<think>\nHm.\n</think>\n\nI look.\n{PARIS}", tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    output: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
        {"role": "assistant", "content": "So it is."},
        {"role": "user", "content": [{"type": "input_text", "text": "[[[Good.]]]"}]},
    ]
    second = ask(front, output, tools=[WEATHER], previous_response_id=first.id)
    listed = list(front.openai.responses.input_items.list(second.id, order="asc", limit=2))  # in pages, by the client
    for item in listed:
        type(item).model_validate(item.to_dict())
    told = [item.to_dict() for item in listed]
    assert len({item["id"] for item in told}) == len(told)
    assert told[1:4] == [item.to_dict() for item in first.output]
    assert [(item["type"], item.get("content")) for item in told[4:]] == [
        ("function_call_output", None),
        ("message", [{"type": "output_text", "text": "So it is.", "annotations": []}]),
        ("message", [{"type": "input_text", "text": "[[[Good.]]]"}]),
    ]
    (said,) = front.openai.responses.input_items.list(first.id).data
    assert said.to_dict() == told[0]
    page = front.openai.responses.input_items.list(second.id, limit=3)
    assert [item.to_dict() for item in page.data] == told[:-4:-1]  # the latest come first
    assert page.has_more
    assert not front.openai.responses.input_items.list(second.id, after=said.id).data
    # A client that sends all of it itself gets the same prompt.
    whole = ask(front, told, tools=[WEATHER])
    assert whole.usage is not None
    assert second.usage is not None
    assert whole.usage.input_tokens == second.usage.input_tokens


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": "x"}, {"limit": "1" * 5000}, {"order": "up"}, {"after": "x"}]
)
def test_a_list_that_cannot_be_had_names_the_member_of_its_query(front: RunningFront, query: dict[str, Any]) -> None:
    first = ask(front, "Hello.")
    answer = httpx.get(f"{front.url}/v1/responses/{first.id}/input_items", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))
    assert httpx.get(f"{front.url}/v1/responses/resp_1/input_items", params=query).status_code == 404


def test_an_answer_of_nothing_is_an_answer(front: RunningFront) -> None:
    """Many templates want turns to alternate."""
    first = ask(front, "")
    assert first.output == []
    asked: Any = {"model": "scripted", "previous_response_id": first.id}
    second = front.openai.responses.create(input="Say [[[Good.]]]", **asked)
    roles = [item.to_dict()["role"] for item in front.openai.responses.input_items.list(second.id, order="asc")]
    assert roles == ["user", "assistant", "user"]


def test_tokens_are_counted_before_they_are_read(front: RunningFront) -> None:
    options: Any = {"model": "scripted", "input": "Say [[[Hello.]]]", "instructions": "Be brief.", "tools": [WEATHER]}
    counted = front.openai.responses.input_tokens.count(**options)
    response = front.openai.responses.create(**options)
    assert response.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)


def test_a_stored_response_is_not_cancelled(front: RunningFront) -> None:
    first = ask(front, "Hello.")
    with pytest.raises(openai.BadRequestError, match="response: it is complete"):
        front.openai.responses.cancel(first.id)
    with pytest.raises(openai.NotFoundError):
        front.openai.responses.cancel("resp_1")


def test_a_call_can_be_required(front: RunningFront) -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        response = ask(front, PARIS, tools=[WEATHER], tool_choice=choice)
        assert [item.type for item in response.output] == ["function_call"]


def test_the_limit_is_told(front: RunningFront) -> None:
    script = f"I look.\n{PARIS}"
    for tokens, items in ((3, ["incomplete"]), (70, ["completed", "incomplete"])):
        response = ask(front, script, max_output_tokens=tokens, tools=[WEATHER])
        assert response.status == "incomplete"
        assert [item.to_dict()["status"] for item in response.output] == items
    assert ask(front, script, tools=[WEATHER]).output[-1].to_dict()["status"] == "completed"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_what_changes_nothing_is_named(front: RunningFront) -> None:
    body = {
        "model": "scripted",
        "input": "x",
        "max_output_tokens": 5,
        "tools": [WEATHER, {"type": "web_search"}, {"type": "file_search"}],
        "include": ["file_search_call.results", "reasoning.encrypted_content"],
        "prompt_cache_key": "me",
    }
    response = httpx.post(f"{front.url}/v1/responses", json=body)
    assert response.status_code == 200
    assert response.headers["X-Freetoken-Ignored"] == "prompt_cache_key, include[0], tools[1], tools[2]"


@pytest.mark.parametrize(
    ("name", "told"),
    [("", "?"), (" ", "?"), (" a ", "?a?"), ("a\r\nSet-Cookie: b", "a??Set-Cookie:?b"), ("é\x7f\t", "???")],
)
def test_any_name_that_changes_nothing_goes_into_a_header(front: RunningFront, name: str, told: str) -> None:
    """A blank at either end of a header's value would end the connection in place of an answer."""
    body = {"model": "scripted", "input": "x", "max_output_tokens": 5, "b": 1, name: None}
    response = httpx.post(f"{front.url}/v1/responses", json=body)
    assert response.status_code == 200
    assert response.headers["X-Freetoken-Ignored"] == f"b, {told}"


def test_more_than_a_header_holds_is_cut(front: RunningFront) -> None:
    """What begins a tool may be anything; clients refuse headers of tens of thousands of bytes."""
    body = {"model": "scripted", "input": "x", "max_output_tokens": 5, "tools": [{"type": []}] * 9000}
    response = httpx.post(f"{front.url}/v1/responses", json=body)
    assert response.status_code == 200
    named = response.headers["X-Freetoken-Ignored"]
    assert named.startswith("tools[0], tools[1], ")
    assert len(named) < 4000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": 1}]}, "input[0].arguments"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "a lot"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": []}}, "reasoning.generate_summary"),
        ({"include": "reasoning.encrypted_content"}, "include"),
        ({"input": [{"type": "reasoning", "summary": ["x"]}]}, "input[0].summary[0]"),
        ({"input": [{"type": "reasoning", "content": [{"text": None}]}]}, "input[0].content[0].text"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": ["function"]}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "two words"}]}, "tools[1].name"),
        ({"temperature": 1000}, "temperature"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ],
)
def test_a_bad_member_is_named(front: RunningFront, change: dict[str, Any], said: str) -> None:
    response = httpx.post(f"{front.url}/v1/responses", json={"model": "scripted", "input": "x", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == said


def test_a_conversation_goes_on_from_items_that_it_refers_to(front: RunningFront) -> None:
    """As Vercel's AI SDK sends them, for it takes every response to be stored."""
    first = ask(front, f"<think>\nHm.\n</think>\n\n{PARIS}", tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "[[[Good.]]]"}
    referred = [{"type": "item_reference", "id": item.id} for item in first.output]
    items = [{"role": "user", "content": "x"}, *referred, output]
    sent = [{"role": "user", "content": "x"}, *[item.model_dump() for item in first.output], output]
    second, same = ask(front, items, tools=[WEATHER]), ask(front, sent, tools=[WEATHER])
    assert second.output_text == same.output_text == "Good."
    assert second.usage is not None
    assert same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match=r"input\[2\]\.id: this item is in the conversation"):
        ask(front, [*referred, *referred])
    front.openai.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]\.id: there is no such item"):
        ask(front, items)


def test_tools_that_are_not_allowed_are_left_out(front: RunningFront) -> None:
    now = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    usages = [
        ask(front, PARIS, tools=tools, tool_choice=choice).usage
        for tools, choice in (([WEATHER, now], only), ([WEATHER], "auto"), ([WEATHER, now], "auto"))
    ]
    allowed, alone, both = (usage.input_tokens for usage in usages if usage is not None)
    assert allowed == alone < both


def test_a_failure_in_the_middle_is_the_last_event_of_its_response(own_front: Callable[..., RunningFront]) -> None:
    front = own_front()
    with front.openai.responses.create(model="endless", input="x", stream=True) as stream:
        events = [event for _, event in zip(range(8), stream, strict=False)]
        front.control("stop", model="endless")
        events += stream
    first, last = events[0], events[-1]
    assert first.type == "response.created"
    assert last.type == "response.failed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (last.response.id, last.response.status) == (first.response.id, "failed")
    assert last.response.error is not None
    assert "unloaded" in last.response.error.message
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    (item,) = without_ids(last.response.output)
    assert (item["content"][0]["text"], item["status"]) == ("".join(deltas), "incomplete")
