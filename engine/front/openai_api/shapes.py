"""Answers in the OpenAI interface's words: chat and text completions, whole and streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.front.answers import Piece, ScoredToken, Tally
from engine.front.dialects import OPENAI, Dialect, Json
from engine.front.tools import call_id
from engine.text.formats.pieces import Call
from engine.text.text import Text


@dataclass
class _Head:
    """What every event and answer of a request begins with."""

    kind: str
    model: str
    prefix: str
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"

    def members(self, kind: str = "") -> Json:
        return {"id": self.id, "object": kind or self.kind, "created": self.created, "model": self.model}


class ChatShape:
    """`chat.completion` and its chunks."""

    dialect: Dialect = OPENAI

    def __init__(self, model: str, text: Text, with_logprobs: bool, with_usage: bool, id_style: str) -> None:
        self._head = _Head("chat.completion", model, "chatcmpl")
        self._text = text
        self._with_logprobs = with_logprobs
        self._with_usage = with_usage
        self._id_style = id_style
        self._calls: dict[int, int] = {}  # that a choice has made so far

    def opening(self, index: int) -> Sequence[Json]:
        return [self._chunk([_chat_choice(index, {"role": "assistant", "content": ""}, None, None)])]

    def events(self, piece: Piece) -> Sequence[Json]:
        delta: Json = {"content": piece.text} if piece.text or piece.tokens else {}
        if piece.thought:
            delta["reasoning_content"] = piece.thought
        if piece.calls:
            first = self._calls.get(piece.index, 0)
            self._calls[piece.index] = first + len(piece.calls)
            delta["tool_calls"] = [{"index": first + i, **call} for i, call in enumerate(self._told(piece.calls))]
        return [self._chunk([_chat_choice(piece.index, delta, self._logprobs(piece.tokens), piece.finish_reason)])]

    def closing(self, tally: Tally) -> Sequence[Json]:
        return [{**self._chunk([]), **_counts(tally)}] if self._with_usage else []

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        choices = []
        for piece in join(pieces):
            message: Json = {"role": "assistant", "content": piece.text, "refusal": None}
            if piece.thought:
                message["reasoning_content"] = piece.thought
            if piece.calls:
                message |= {"content": piece.text or None, "tool_calls": self._told(piece.calls)}
            choices.append(
                {
                    "index": piece.index,
                    "message": message,
                    "logprobs": self._logprobs(piece.tokens),
                    "finish_reason": piece.finish_reason,
                }
            )
        return {**self._head.members(), "choices": choices, **_counts(tally)}

    def _told(self, calls: Sequence[Call]) -> list[Json]:
        return [
            {
                "id": call_id(call, self._id_style),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head.members("chat.completion.chunk"), "choices": choices}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        if not self._with_logprobs:
            return None
        return {
            "content": [
                {
                    **self._scored(scored.token, scored.scores.logprob),
                    "top_logprobs": [self._scored(*pair) for pair in scored.scores.top],
                }
                for scored in tokens
            ],
            "refusal": None,
        }

    def _scored(self, token: int, logprob: float) -> Json:
        content = self._text.token_bytes(token)
        return {"token": content.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(content)}


class CompletionShape:
    """`text_completion`, whose chunks look like the whole."""

    dialect: Dialect = OPENAI

    def __init__(self, model: str, text: Text, with_logprobs: bool, with_usage: bool, echoes: Sequence[str]) -> None:
        """`echoes` is what each choice's text begins with; all empty unless the prompt is to be echoed."""
        self._head = _Head("text_completion", model, "cmpl")
        self._text = text
        self._with_logprobs = with_logprobs
        self._with_usage = with_usage
        self._echoes = echoes
        self._offsets = [len(echo) for echo in echoes]

    def opening(self, index: int) -> Sequence[Json]:
        echo = self._echoes[index]
        return [{**self._head.members(), "choices": [_text_choice(index, echo, None, None)]}] if echo else []

    def events(self, piece: Piece) -> Sequence[Json]:
        choice = _text_choice(piece.index, piece.text, self._logprobs(piece), piece.finish_reason)
        return [{**self._head.members(), "choices": [choice]}]

    def closing(self, tally: Tally) -> Sequence[Json]:
        return [{**self._head.members(), "choices": [], **_counts(tally)}] if self._with_usage else []

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        choices = [
            _text_choice(
                piece.index, self._echoes[piece.index] + piece.text, self._logprobs(piece), piece.finish_reason
            )
            for piece in join(pieces)
        ]
        return {**self._head.members(), "choices": choices, **_counts(tally)}

    def _logprobs(self, piece: Piece) -> Json | None:
        if not self._with_logprobs:
            return None
        names = [self._name(scored.token) for scored in piece.tokens]
        offsets = []
        for name in names:
            offsets.append(self._offsets[piece.index])
            self._offsets[piece.index] += len(name)
        return {
            "tokens": names,
            "token_logprobs": [scored.scores.logprob for scored in piece.tokens],
            "top_logprobs": [
                {self._name(token): logprob for token, logprob in scored.scores.top} for scored in piece.tokens
            ],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """A token's text; pieces of characters as `bytes:\\xe2`, or they would all be one key."""
        content = self._text.token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """One piece for each choice, in order of their numbers."""
    joined: dict[int, Piece] = {}
    for piece in pieces:
        before = joined.get(piece.index, Piece(piece.index))
        joined[piece.index] = Piece(
            piece.index,
            before.text + piece.text,
            before.tokens + piece.tokens,
            piece.finish_reason,
            before.thought + piece.thought,
            before.calls + piece.calls,
        )
    return [joined[index] for index in sorted(joined)]


def _chat_choice(index: int, delta: Json, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _text_choice(index: int, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _counts(tally: Tally) -> Json:
    return {"usage": tally.usage(), "statistics": tally.statistics()}
