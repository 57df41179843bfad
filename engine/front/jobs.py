"""What has to be answered: prompts to continue, and how what comes is read."""

from __future__ import annotations

from dataclasses import dataclass

from engine.base.errors import ContextFullError
from engine.memory.retention import Anchor
from engine.text.formats.parser import Part
from engine.text.formats.pieces import Tools
from engine.text.formats.record import AnswerFormat
from engine.text.text import Text
from engine.worker.protocol import Generate, Grammar, Sampling, ThoughtBound


@dataclass(frozen=True)
class Reader:
    """How the answer of a chat is read and held. `begun` is what it begins with, the prompt's last words."""

    form: AnswerFormat
    tools: Tools | None
    part: Part
    begun: str = ""
    parallel: bool = True
    grammars: tuple[Grammar, ...] = ()
    bound: ThoughtBound | None = None
    custom: frozenset[str] = frozenset()  # the tools that are called with text
    enforced: frozenset[str] = frozenset()  # those whose calls follow all that is wished of them


PLAIN = Reader(AnswerFormat(), None, Part.SAID)


@dataclass(frozen=True)
class Job:
    """One choice of a request: a prompt to continue."""

    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    stops: tuple[str, ...]
    sampling: Sampling
    anchors: tuple[Anchor, ...] = ()
    reader: Reader = PLAIN

    def request(self, number: int, text: Text) -> Generate:
        """The choice as a request to a worker, with the anchors of what the model generates."""
        edges = (self.anchors, text.anchor_ids, text.anchor_runs)
        return Generate(number, self.prompt, self.max_tokens, self.stop_ids, self.sampling, *edges)


def room_for_answer(prompt_tokens: int, context: int, max_tokens: int | None) -> int:
    """Tokens an answer may have: what was asked for, at most what the context leaves.

    ContextFullError with the counts if the prompt leaves nothing.
    """
    room = context - prompt_tokens
    if room < 1:
        raise ContextFullError(
            # Agents shorten their conversations when they find "prompt is too long" or "maximum context length is".
            f"The prompt is too long: its {prompt_tokens} tokens leave no room for an answer. "
            f"This model's maximum context length is {context} tokens here.",
            "Shorten the prompt, or load the model with a larger --context and --kv.",
        )
    return room if max_tokens is None else min(room, max_tokens)
