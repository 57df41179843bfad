"""Tiny models that a front serves, whose tokens are bytes: what a script sends is known to the last token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.files.conversion.convert import convert
from engine.files.source_file import LocalFile
from engine.files.sources.gguf.header import read_gguf_header
from engine.text.gguf_tokenizer import write_tokenizer
from engine.text.text import Text
from tests.bench.random_moe import smollm2_gguf
from tests.parity.cases import CASES, Case
from tests.parity.tiny import save
from tests.server.running_front import IM_END, RunningFront, make_tokenizer
from tests.turns.scripts import Message
from tests.turns.talking import PRINTABLE, SAID, request
from tests.unit.fake_executor import VOCAB

TEMPLATE = """
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\nTools:\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
    {{- 'Call one as <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > last.question %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking %}{{- '<think>\\n' }}{% endif %}
{%- endif %}
"""
"""Marks turns by control tokens, thinking, calls and their results by words."""

WORDS = ("system", "user", "assistant", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single tokens in every real tokenizer, or nearly; the header of a turn is as long as there."""

SERVED = {"max_position_embeddings": 16384, "eos_token_id": IM_END}
_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "attention": ("qwen3_moe", {}),
    "delta-net": ("qwen3_next", {"linear_key_head_dim": 32}),
    "state-space": ("granitemoehybrid", {}),
    "convolution": ("lfm2_moe", {"tie_word_embeddings": True}),
    "window": ("gpt_oss", {}),
}
"""Cases of tests/parity, and what of them llama.cpp wants otherwise."""
_CASES = {case.name: case for case in CASES}
MODELS: Mapping[str, Case] = {
    kind: replace(_CASES[name], settings={**_CASES[name].settings, **SERVED, **settings})
    for kind, (name, settings) in _KINDS.items()
}
"""By the kind of layer that asks something of context memory of its own."""


def write_bytes_tokenizer(folder: Path) -> None:
    """Tokens are single bytes, and the words of `TEMPLATE`, which comes with them."""
    make_tokenizer(WORDS).save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_smollm2(folder: Path) -> None:
    """SmolLM2's tokenizer, and our template."""
    with closing(LocalFile(smollm2_gguf())) as file:
        write_tokenizer(read_gguf_header(file).metadata, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))


def make_store(
    folder: Path,
    names: Sequence[str],
    vocabulary: int = VOCAB,
    write: Callable[[Path], None] = write_bytes_tokenizer,
) -> Path:
    """A store with some of `MODELS`, made by transformers beside it and converted; `write` adds their tokenizers."""
    store = folder / "store"
    for name in names:
        checkpoint, case = folder / name, MODELS[name]
        save(replace(case, settings={**case.settings, "vocab_size": vocabulary}), checkpoint)
        write(checkpoint)
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
        """The answer comes back as the tokens that it is made of."""
        bias = sayable(self.text)
        answer: Any = self.front.openai.post(
            "/chat/completions",
            cast_to=object,
            body=request(self.model, messages, thinks, self.tokens, bias),
        )
        (choice,) = answer["choices"]
        content: str = choice["message"]["content"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        ids = self.text.encode(content)
        assert len(ids) == len(logprobs) == self.tokens, f"the answer comes back as other tokens: {content!r}"
        reused: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return content, ids, logprobs, reused

    def cold(self) -> None:
        """Have the model forget everything."""
        self.front.control("stop", model=self.model)


def sayable(text: Text) -> dict[str, int]:
    """A bias towards words that are single tokens where the tokenizer has words, else towards printable characters.

    What is made of them comes back as the same tokens, so the ids of an answer are known here.
    """
    words = [token for word in SAID if len(token := text.encode(word)) == 1]
    said = words if len(words) == len(SAID) else [text.encode(character) for character in PRINTABLE]
    return {str(token): 100 for (token,) in said}
