"""A script of turns carried out over HTTP, and how many tokens each turn computed beside how many it had to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.turns.scripts import SCRIPTS, THINKING, Message

PRINTABLE = tuple(map(chr, range(32, 127)))
SAID = (
    " the", " of", " and", " to", " in", " is", " was", " for", " on", " that", " with", " as", " by", " at", " from",
    " it", " an", " be", " this", " which", " or", " are", " not", " have", " had", " his", " one", " all", " were",
    " they", " more", " who", " also", " has", " new", " two", " been", " other", " time", " first", " some", " could",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One request: its messages, the ids of its prompt and of its answer, their log probabilities, what was reused."""

    messages: Sequence[Message]
    prompt: Sequence[int]
    answer: Sequence[int]
    logprobs: Sequence[float]
    reused: int
    ideal: int
    """The longest beginning of the prompt, short of its last token, that any turn before has computed."""

    @property
    def computed(self) -> int:
        return len(self.prompt) - self.reused

    @property
    def excess(self) -> int:
        """Tokens computed beyond those that nobody had computed before."""
        return self.ideal - self.reused


Ask = Callable[[Sequence[Message], bool], tuple[str, Sequence[int], Sequence[float], int]]
"""Messages, and whether the model thinks -> the answer as text, as ids, log probabilities, tokens reused."""
Encode = Callable[[Sequence[Message], bool], Sequence[int]]


def talk(name: str, ask: Ask, encode: Encode) -> list[Turn]:
    """Carry out a script."""
    script, thinks = SCRIPTS[name](), name in THINKING
    turns: list[Turn] = []
    known: list[Sequence[int]] = []
    messages = next(script)
    while True:
        prompt = encode(messages, thinks)
        text, answer, logprobs, reused = ask(messages, thinks)
        ideal = max((shared(prompt, before) for before in known), default=0)
        turns.append(Turn(messages, prompt, answer, logprobs, reused, min(ideal, len(prompt) - 1)))
        known.append([*prompt, *answer[:-1]])
        try:
            messages = script.send(text)
        except StopIteration:
            return turns


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that two sequences begin with alike."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def request(model: str, messages: Sequence[Message], thinks: bool, tokens: int, bias: dict[str, int]) -> dict[str, Any]:
    """A greedy chat request that tells the log probabilities of `tokens` tokens."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": True,
        "logit_bias": bias,
        "reasoning_format": "none",
        "chat_template_kwargs": {"enable_thinking": thinks},
    }
