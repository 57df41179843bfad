"""Rendered prompts and their ids equal transformers' `apply_chat_template` for ordinary conversations."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import text_models
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.base.errors import FreetokenError, UnsupportedError, UsageError
from engine.text.text import Text

SYSTEM = {"role": "system", "content": "Answer in one word. "}
HELLO = {"role": "user", "content": "Hello there, what's 2 + 22?"}
ANSWER = {"role": "assistant", "content": " It's 24.\n"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What the weather is <now> & later",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"degrees": 7}'}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [HELLO],
    "system": [SYSTEM, HELLO],
    "several turns": [HELLO, ANSWER, {"role": "user", "content": "Sure?"}],
    "system and turns": [SYSTEM, HELLO, ANSWER, {"role": "user", "content": "\n\nSure?  "}],
    "ends with an answer": [HELLO, ANSWER],
    "unicode": [{"role": "user", "content": "Größe é e\u0301 日本語 👩‍👩‍👧 \u00a0\u200b ½ ² ﬁ"}],
    "code": [{"role": "user", "content": "def f(x):\n    if x:\n\t\treturn  [1, 2]   # ok\n\n\n"}],
    "empty": [{"role": "user", "content": ""}],
    "spaces": [{"role": "user", "content": "   "}],
    "html": [{"role": "user", "content": "<table><tr><td>a < b && c</td></tr></table>"}],
}
WITH_TOOLS: dict[str, list[dict[str, Any]]] = {
    "tools": [HELLO],
    "system and tools": [SYSTEM, HELLO],
    "call": [HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT],
    "call without content": [HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
    "call with nulls": [HELLO, {"role": "assistant", "refusal": None, "tool_calls": [CALL]}, RESULT, ANSWER],
}
THINKING: dict[str, list[dict[str, Any]]] = {
    "reasoning in the content": [HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n24"}],
    "reasoning of earlier turns": [HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n24"}, HELLO],
    "reasoning apart": [HELLO, {"role": "assistant", "reasoning_content": "hm", "content": "24"}],
    "reasoning by another name": [HELLO, {"role": "assistant", "reasoning": "hm", "content": "24"}],
    "calls in the content": [HELLO, {"role": "assistant", "content": "<tool_call>\n{}\n</tool_call>"}, RESULT],
    "arguments as text": [
        HELLO,
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "w", "arguments": '{"a":1}'}}]},
        RESULT,
    ],
}


class Pair:
    """A checkpoint as we read it and as transformers does."""

    def __init__(self, folder: Path) -> None:
        self.text = Text.load(folder)
        self.reference = PreTrainedTokenizerFast.from_pretrained(folder)

    def check(self, messages: list[dict[str, Any]], **options: Any) -> None:
        given = copy.deepcopy(messages)
        prompt = self.text.render(messages, **options)
        assert messages == given, "the caller's messages were changed"
        rendered = self.reference.apply_chat_template(given, tokenize=False, **options)
        assert prompt.text == rendered
        assert prompt.ids == self.reference.apply_chat_template(given, return_dict=False, **options)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Pair(make(folder / name)) for name, make in text_models.MODELS.items()}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("model", text_models.MODELS)
def test_conversations(pairs: dict[str, Pair], model: str, name: str) -> None:
    for generation_prompt in (True, False):
        pairs[model].check(CONVERSATIONS[name], add_generation_prompt=generation_prompt)


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("model", ["headers", "brackets", "brackets_legacy", "thinking"])
def test_tools(pairs: dict[str, Pair], model: str, name: str) -> None:
    for generation_prompt in (True, False):
        pairs[model].check(WITH_TOOLS[name], tools=TOOLS, add_generation_prompt=generation_prompt)


@pytest.mark.parametrize("name", THINKING)
def test_thinking(pairs: dict[str, Pair], name: str) -> None:
    pair = pairs["thinking"]
    for options in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        pair.check(THINKING[name], add_generation_prompt=True, **options)
    markers = [pair.text._vocabulary.id_of(marker) for marker in ("<think>", "<tool_call>")]
    prompt = pair.text.render(THINKING["reasoning in the content"])
    assert markers[0] in prompt.ids, "what a model wrote keeps its markers"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=5), st.booleans(), st.sampled_from(sorted(text_models.MODELS))
)
def test_any_text(pairs: dict[str, Pair], contents: list[str], generation_prompt: bool, model: str) -> None:
    """Text without control tokens, whatever else it holds, encodes as in transformers."""
    contents = ["".join(char for char in text if char not in "<[|\ufdd0\ufdef") for text in contents]
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)]
    pairs[model].check(messages, add_generation_prompt=generation_prompt)


def test_parts_of_content(pairs: dict[str, Pair]) -> None:
    """A template that reads lists gets them; others get the texts joined by line breaks."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    pairs["chatml"].check(parts, add_generation_prompt=True)
    assert "onetwo<|im_end|>" in pairs["chatml"].text.render(parts).text
    pairs["thinking"].check(parts, add_generation_prompt=True)
    joined = [{"role": "user", "content": "one\ntwo"}]
    for model in ("headers", "brackets", "spelled"):
        assert pairs[model].text.render(parts).ids == pairs[model].text.render(joined).ids


def test_missing_content_where_the_template_needs_it(pairs: dict[str, Pair]) -> None:
    """A template that adds content to a string gets an empty one, where transformers fails."""
    messages = [HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]
    with pytest.raises(Exception, match="no attribute 'content'"):
        pairs["spelled"].reference.apply_chat_template(messages, tokenize=False)
    assert "<|assistant|>\n<|end|>" in pairs["spelled"].text.render(messages).text


def test_arguments_as_text_become_objects_where_needed(pairs: dict[str, Pair]) -> None:
    calls = [{**CALL, "function": {"name": "weather", "arguments": '{"city":"Köln"}'}}]
    messages = [HELLO, {"role": "assistant", "tool_calls": calls}, RESULT]
    assert '"parameters": {"city": "Köln"}' in pairs["headers"].text.render(messages, tools=TOOLS).text
    assert '"arguments": {"city":"Köln"}' in pairs["thinking"].text.render(messages, tools=TOOLS).text


def test_anchors_are_edges_of_turns(pairs: dict[str, Pair]) -> None:
    text = pairs["chatml"].text
    prompt = text.render([SYSTEM, HELLO])
    start, end = (text._vocabulary.id_of(token) for token in ("<|im_start|>", "<|im_end|>"))
    expected = {(i, True) for i, token in enumerate(prompt.ids) if token == start and i}
    expected |= {(i + 1, False) for i, token in enumerate(prompt.ids) if token == end}
    assert prompt.anchors == tuple(sorted(expected))
    longer = text.render([SYSTEM, HELLO, ANSWER, HELLO])
    shared = [anchor for anchor in prompt.anchors if prompt.ids[: anchor[0]] == longer.ids[: anchor[0]]]
    assert shared[: len(expected)] == list(longer.anchors[: len(shared)]), "a longer conversation shares the anchors"


def test_template_by_name(tmp_path: Path) -> None:
    """Several named templates: `tool_use` serves conversations with tools, `default` the others."""
    tokenizer = text_models.byte_level()
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    text_models.save(tmp_path, tokenizer, None, chat_template=templates)
    text = Text.load(tmp_path)
    assert text.render([HELLO]).text == "plain"
    assert text.render([HELLO], tools=TOOLS).text == "tools"
    templates[0]["name"] = "other"
    text_models.save(tmp_path, tokenizer, None, chat_template=templates)
    with pytest.raises(UnsupportedError, match="other, tool_use"):
        Text.load(tmp_path).render([HELLO])


def test_template_files(tmp_path: Path) -> None:
    """chat_template.jinja wins over tokenizer_config.json, which wins over chat_template.json."""
    tokenizer = text_models.byte_level()
    text_models.save(tmp_path, tokenizer, None)
    with pytest.raises(UnsupportedError, match="no chat template"):
        Text.load(tmp_path).render([HELLO])
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert Text.load(tmp_path).render([HELLO]).text == "from json"
    text_models.save(tmp_path, tokenizer, None, chat_template="from config")
    assert Text.load(tmp_path).render([HELLO]).text == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file é")
    assert Text.load(tmp_path).render([HELLO]).text == "from file é"
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("from another file")
    assert Text.load(tmp_path).render([HELLO], tools=TOOLS).text == "from another file"
    (tmp_path / "chat_template.tool_use.jinja").write_text("from a converted model")
    assert Text.load(tmp_path).render([HELLO], tools=TOOLS).text == "from a converted model"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages"),
        ("hello", "not a list"),
        (["hello"], "Message 1 is not an object"),
        ([HELLO, {"content": "x"}], "Message 2 has no role"),
        ([{"role": "user", "content": 7}], "content of message 1 is neither text nor a list"),
        (
            [HELLO, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "Message 2 has a part of type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "Message 1 has a part without text"),
        ([{"role": "user", "content": "x", "extra": object()}], "Message 1 holds data of type object"),
        ([HELLO, {"role": "assistant", "tool_calls": {}}], "tool calls of message 2 are not a list"),
        ([HELLO, {"role": "assistant", "tool_calls": [{"function": "f"}]}], "message 2 has no function"),
        ([HELLO, HELLO], "must alternate.* message 2, with the role user"),
        ([HELLO, ANSWER, HELLO, {"role": "critic", "content": "x"}], "unknown role critic.* message 4"),
    ],
)
def test_bad_messages_are_named(pairs: dict[str, Pair], messages: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pairs["brackets"].text.render(messages)


def test_deep_data_is_refused(pairs: dict[str, Pair]) -> None:
    deep: Any = "x"
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(UsageError, match="nested"):
        pairs["chatml"].text.render([HELLO], tools=[{"function": deep}])


def test_template_that_does_not_compile(tmp_path: Path) -> None:
    text_models.save(tmp_path, text_models.byte_level(), None, chat_template="\n{% if x %}")
    with pytest.raises(UnsupportedError, match="line 2"):
        Text.load(tmp_path).render([HELLO])


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_for_a_message_is_rendered_or_refused(pairs: dict[str, Pair], value: Any) -> None:
    for messages in (
        value,
        [value],
        [{"role": "user", "content": value}],
        [{"role": "assistant", "tool_calls": value}],
    ):
        for model in ("headers", "thinking"):
            with contextlib.suppress(FreetokenError):
                pairs[model].text.render(messages)
