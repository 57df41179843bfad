"""Tiny models that a front serves, whose tokens are single bytes: what a script sends is known to the last token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files.conversion.convert import convert
from engine.text.gguf_tokenizer import write_tokenizer
from engine.text.text import Text
from tests.parity.cases import EIGHT, HEAD, QWEN_MOE, Case
from tests.parity.tiny import save
from tests.server.running_front import RunningFront, make_tokenizer
from tests.turns.scripts import Message
from tests.turns.talking import PRINTABLE, request
from tests.unit.fake_executor import VOCAB

TEMPLATE = """
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > last.question %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking %}{{- '<think>\\n' }}{% endif %}
{%- endif %}
"""
"""Marks turns by control tokens, thinking and tool results by words that the tokenizer knows nothing of."""

SERVED = {"vocab_size": VOCAB, "max_position_embeddings": 16384}
MODELS: Mapping[str, Case] = {
    "attention": Case("attention", "qwen3_moe", {**HEAD, **EIGHT, **QWEN_MOE, **SERVED}),
}


def make_store(folder: Path, names: Sequence[str]) -> Path:
    """A store with some of `MODELS`, made by transformers and converted."""
    store = folder / "store"
    for name in names:
        checkpoint = folder / name
        save(MODELS[name], checkpoint)
        make_tokenizer().save(str(checkpoint / "tokenizer.json"))
        config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
        (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
        store.mkdir(exist_ok=True)
        convert(checkpoint, store / name, write_tokenizer=write_tokenizer)
    return store


@dataclass(frozen=True)
class Talker:
    """Asks one model of a front."""

    front: RunningFront
    model: str
    text: Text
    tokens: int = 24  # of an answer

    def encode(self, messages: Sequence[Message], thinks: bool) -> Sequence[int]:
        return self.text.render(messages, enable_thinking=thinks).ids

    def ask(self, messages: Sequence[Message], thinks: bool) -> tuple[str, Sequence[int], Sequence[float], int]:
        """The answer's characters are printable ones, so that they come back as the same tokens."""
        bias = {str(self.text.encode(chr(code))[0]): 100 for code in PRINTABLE}
        answer: Any = self.front.openai.post(
            "/chat/completions",
            cast_to=object,
            body=request(self.model, messages, thinks, self.tokens, bias),
        )
        (choice,) = answer["choices"]
        content: str = choice["message"]["content"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        ids = self.text.encode(content)
        assert len(ids) == len(logprobs) == self.tokens, "the answer comes back as other tokens"
        reused: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return content, ids, logprobs, reused

    def cold(self) -> None:
        """Have the model forget everything."""
        self.front.control("stop", model=self.model)
