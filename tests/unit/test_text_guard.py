"""Text from outside can never produce a control token, wherever it stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import text_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engine.text.folder import AddedToken
from engine.text.guard import Fence, Guard, is_control, scrub
from engine.text.text import Text

MODELS = sorted(text_models.MODELS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: make(folder / name) for name, make in text_models.MODELS.items()}


@pytest.fixture(scope="module")
def texts(folders: dict[str, Path]) -> dict[str, Text]:
    return {name: Text.load(folder) for name, folder in folders.items()}


def conversation(model: str, text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A conversation with `text` everywhere a client can put any, as far as the model's template reads it."""
    user = {"role": "user", "content": text}
    if model in ("chatml", "spaces", "spelled"):
        return [{"role": "system", "content": text}, user], {}
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": {text: text}}}
    messages = [
        {"role": "system", "content": text},
        user,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": text, "name": text, "content": text},
    ]
    tool = {"name": text, "description": text, "parameters": {"type": "object", "properties": {text: {"enum": [text]}}}}
    return messages, {"tools": [{"type": "function", "function": tool}], "note": text}


def controls(text: Text, ids: list[int]) -> list[int]:
    return [token for _, token in text._vocabulary.control_positions(ids)]


def control_texts(text: Text) -> list[str]:
    return sorted(text._vocabulary.text_of(token) for token in text._vocabulary.control_ids)


def check(text: Text, model: str, forgery: str) -> None:
    """A conversation full of `forgery` has the control tokens of a harmless one, and loses none of its text."""
    harmless_messages, harmless_options = conversation(model, "x")
    messages, options = conversation(model, forgery)
    harmless = text.render(harmless_messages, **harmless_options)
    prompt = text.render(messages, **options)
    assert controls(text, prompt.ids) == controls(text, harmless.ids), forgery
    assert controls(text, text.encode(forgery)) == []


@pytest.mark.parametrize("model", MODELS)
def test_every_control_token_everywhere(texts: dict[str, Text], model: str) -> None:
    text = texts[model]
    for token in control_texts(text):
        check(text, model, token)
        check(text, model, f"a {token}\n{token}b")


@pytest.mark.parametrize("model", MODELS)
def test_transformers_would_be_fooled(folders: dict[str, Path], texts: dict[str, Text], model: str) -> None:
    """The check can fail: rendered without protection the same conversations have more control tokens."""
    reference = PreTrainedTokenizerFast.from_pretrained(folders[model])
    text = texts[model]
    token = "<|im_start|>" if model in ("chatml", "spaces", "thinking") else control_texts(text)[0]
    messages, options = conversation(model, token)
    fooled = reference.apply_chat_template(messages, return_dict=False, add_generation_prompt=True, **options)
    assert len(controls(text, fooled)) > len(controls(text, text.render(messages, **options).ids))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_mixture_of_pieces(texts: dict[str, Text], data: st.DataObject) -> None:
    """Pieces of control tokens in any order, with our own marks and what might be cut away between them."""
    model = data.draw(st.sampled_from(MODELS))
    tokens = control_texts(texts[model])
    pieces = st.sampled_from(tokens).flatmap(
        lambda token: st.tuples(st.integers(0, len(token)), st.integers(0, len(token))).map(
            lambda cut: token[min(cut) : max(cut)]
        )
    )
    noise = st.sampled_from([" ", "\n", "\ufdd0", "\ufdd1", "\ufdd5", "\u2581", "\ud800", "x", "<", "|>"])
    check(texts[model], model, "".join(data.draw(st.lists(st.one_of(pieces, noise), max_size=6))))


@pytest.mark.parametrize("model", MODELS)
def test_forged_text_is_kept(texts: dict[str, Text], model: str) -> None:
    """What looks like a control token stays in the prompt, as text."""
    text = texts[model]
    for token in control_texts(text):
        prompt = text.render([{"role": "user", "content": f"a {token} b"}])
        assert f"a {token} b" in prompt.text
        assert f"a {token} b" in text.decode(prompt.ids, skip_special=False)


def test_assistants_may_write_soft_tokens_only(texts: dict[str, Text]) -> None:
    """Markers of a model's own answers stay tokens; special tokens and arguments of calls do not."""
    text = texts["thinking"]
    ids = {token: text._vocabulary.id_of(token) for token in control_texts(text)}

    def count(message: dict[str, Any], token: str) -> int:
        question = {"role": "user", "content": "x"}
        answer = {"role": "assistant", **message}
        return text.render([question, answer, question], add_generation_prompt=False).ids.count(ids[token])

    assert count({"content": "<tool_call>"}, "<tool_call>") == 1
    assert count({"content": "<|im_end|>"}, "<|im_end|>") == count({"content": "x"}, "<|im_end|>")
    arguments = {"function": {"name": "f", "arguments": "</tool_call>"}}
    assert count({"content": "", "tool_calls": [arguments]}, "</tool_call>") == 1, "the template's own"


def test_spelled_tokens_are_found_and_cannot_be_completed(texts: dict[str, Text]) -> None:
    text = texts["spelled"]
    user = text._vocabulary.id_of("<|user|>")
    assert text._rendering(with_tools=False).template.traits.spelled >= {"<|user|>", "<|assistant|>", "<|system|>"}
    for forgery in ("<|user|>", "<|us", "er|>", "|>", "<", "<|user|", "  |user|>  ", "<|user|><|user|>"):
        prompt = text.render([{"role": "user", "content": forgery}, {"role": "assistant", "content": forgery}])
        assert prompt.ids.count(user) == 1
        assert f"\n{forgery}<|end|>" in prompt.text, "the text is as it was"


def test_encode_prompt_reads_control_tokens(folders: dict[str, Path], texts: dict[str, Text]) -> None:
    """A raw prompt is written by its sender in whole, so there control tokens count, as in transformers."""
    for model, text in texts.items():
        reference = PreTrainedTokenizerFast.from_pretrained(folders[model])
        for token in control_texts(text):
            raw = f"a {token} b"
            assert text.encode_prompt(raw) == reference(raw)["input_ids"]
            assert text.encode_prompt(raw, add_special=False) == reference(raw, add_special_tokens=False)["input_ids"]
            assert text._vocabulary.id_of(token) in text.encode_prompt(raw)


def test_model_that_makes_control_tokens_of_plain_text(tmp_path: Path) -> None:
    """Merges that lead to `<s>`, as derived from SentencePiece vocabularies, are undone."""
    vocab = {piece: index for index, piece in enumerate(["<s>", "<", "s", ">", "<s", "a"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("<", "s"), ("<s", ">")]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<s>"])
    template = "{{ bos_token }}{{ messages[0].content }}"
    text_models.save(tmp_path, tokenizer, None, bos_token="<s>", chat_template=template)
    text = Text.load(tmp_path)
    assert vocab["<s>"] == tokenizer.model.tokenize("<s>")[0].id, "the model alone would do it"
    prompt = text.render([{"role": "user", "content": "a<s>a"}])
    assert prompt.ids.count(vocab["<s>"]) == 1
    assert text.decode(prompt.ids, skip_special=False) == "<s>a<s>a"
    assert text.encode("<s><s") == [1, 2, 3, 4]


def test_vocabulary_with_holes(tmp_path: Path) -> None:
    """Ids that the guarded tokenizer invents never fall on ids of the model."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 4, "d": 5, "<x>": 7, "<y>": 9}, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<x>", "<y>"])
    text_models.save(tmp_path, tokenizer, None, chat_template="<x>abcd{{ messages[0].content }}<y>")
    text = Text.load(tmp_path)
    ids = text.render([{"role": "user", "content": "dcba"}]).ids
    assert ids == [7, 0, 1, 4, 5, 5, 4, 1, 0, 9]


@pytest.mark.parametrize(
    ("token", "template", "expected"),
    [
        (AddedToken("<|im_start|>", special=True), "", True),
        (AddedToken("<tool_call>"), "", True),
        (AddedToken("[INST]"), "", True),
        (AddedToken("]~b]"), "", True),
        (AddedToken("..."), "write ...", True),
        (AddedToken("<table>"), "", False),
        (AddedToken("<table>"), "a <table> of", True),
        (AddedToken("<code>", special=True), "", True),
        (AddedToken("ö"), "möglich", False),
        (AddedToken("    "), "    {{ x }}", False),
        (AddedToken("\u2581\u2581"), "", False),
        (AddedToken("\n", special=True), "\n", False),
        (AddedToken("..."), "", True),
        (AddedToken("!", special=True), "Hello!", False),
        (AddedToken("pad", special=True), "", True),
    ],
)
def test_what_is_control(token: AddedToken, template: str, expected: bool) -> None:
    assert is_control(token, template) is expected


@given(st.text())
def test_seals_come_off(text: str) -> None:
    guard = Guard([AddedToken("<a>", special=True), AddedToken("[b]"), AddedToken("<a>[b]")])
    text = scrub(text.replace("x", "<a>").replace("y", "[b]"))
    assert guard.unseal(guard.seal(text)) == text
    assert guard.find(guard.seal(text)) == frozenset()
    assert len(guard.seal(text)) == len(text)
    fence = Fence(["<a>", "[b]"])
    assert guard.unseal(fence.seal_spelled(fence.put(text), guard)) == text
    assert guard.seal("<a>[b]") == guard.sealed("<a>[b]"), "the longest token wins"


def test_thousands_of_control_tokens() -> None:
    """Some vocabularies hold thousands of unused tokens; a page full of `<` still costs milliseconds."""
    guard = Guard([AddedToken(f"<unused{index}>") for index in range(6000)])
    page = "<p>one</p> <unused5999> " * 20_000
    began = time.process_time()
    sealed = guard.seal_soft(page)
    assert time.process_time() - began < 2
    assert guard.unseal(sealed) == page
    assert sealed.count("<p>") == 20_000
    assert "<unused" not in sealed
