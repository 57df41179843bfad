"""Text completions: raw prompts in, raw text out."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion

from engine.text.text import Text
from tests.server.running_front import RunningFront, make_tokenizer
from tests.unit.fake_executor import answer


def complete(front: RunningFront, prompt: Any, **options: Any) -> Completion:
    result = front.openai.completions.create(model="fake", prompt=prompt, temperature=0, **options)
    assert isinstance(result, Completion)
    return result


def expected(text: Text, prompt: str, count: int) -> str:
    return text.decode(answer(make_tokenizer().encode(prompt).ids, count))


def test_text_and_its_token_ids_are_the_same_prompt(front: RunningFront, text: Text) -> None:
    wanted = expected(text, "Once upon", 10)
    ids = make_tokenizer().encode("Once upon").ids
    for prompt in ("Once upon", ["Once upon"], ids, [ids]):
        assert complete(front, prompt, max_tokens=10).choices[0].text == wanted


def test_control_tokens_in_a_raw_prompt_are_control_tokens(front: RunningFront) -> None:
    completion = complete(front, "<|im_start|>user", max_tokens=1)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 5


def test_sixteen_tokens_unless_asked_otherwise(front: RunningFront) -> None:
    completion = complete(front, "default length", extra_body={"ignore_eos": True})
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16


def test_several_prompts_and_choices_are_numbered_in_order(front: RunningFront, text: Text) -> None:
    completion = complete(front, ["alpha", "beta"], n=2, max_tokens=6)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    wanted = [expected(text, prompt, 6) for prompt in ("alpha", "alpha", "beta", "beta")]
    assert [choice.text for choice in completion.choices] == wanted
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len("alpha") + len("beta")


@pytest.mark.parametrize("prompt", ["echo this", "<|im_start|>user\n"])
def test_echo_puts_the_prompt_first(front: RunningFront, prompt: str) -> None:
    plain = complete(front, prompt, max_tokens=8).choices[0].text
    assert complete(front, prompt, max_tokens=8, echo=True).choices[0].text == prompt + plain
    ids = make_tokenizer().encode(prompt).ids
    chunks = front.openai.completions.create(
        model="fake", prompt=ids, temperature=0, max_tokens=8, echo=True, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt + plain


def test_logprobs_in_this_interfaces_shape(front: RunningFront) -> None:
    completion = complete(front, "scores", max_tokens=4, logprobs=2, extra_body={"ignore_eos": True})
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or []) == len(logprobs.top_logprobs or []) == 4
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for name, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs or [], strict=True
    ):
        assert max(top.values()) == logprob
        assert name in top
