"""Answers in the OpenAI interface's words: chat and text completions, whole and streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.front.answers import Piece, ScoredToken
from engine.front.forms.tools import call_id
from engine.front.gathered import Whole, gathered
from engine.front.shape import scores
from engine.front.tally import Tally
from engine.front.wire.dialects import OPENAI, Dialect, Json
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown, CallPiece
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
        self._calls: dict[int, int] = {}  # of each choice the number of its latest
        self._custom: dict[int, bool] = {}  # and whether that is of a custom tool

    def opening(self, index: int) -> Sequence[Json]:
        return [self._chunk([_chat_choice(index, {"role": "assistant", "content": ""}, None, None)])]

    def events(self, piece: Piece) -> Sequence[Json]:
        delta: Json = {"content": piece.text} if piece.text or piece.tokens else {}
        if piece.thought:
            delta["reasoning_content"] = piece.thought
        if piece.call is not None:
            if isinstance(piece.call, CallEnded) and piece.finish_reason is None:
                return []
            delta |= self._call(piece.index, piece.call)
        return [self._chunk([_chat_choice(piece.index, delta, self._logprobs(piece.tokens), piece.finish_reason)])]

    def closing(self, tally: Tally) -> Sequence[Json]:
        return [{**self._chunk([]), **_counts(tally)}] if self._with_usage else []

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        choices = []
        for choice in gathered(pieces):
            message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
            if choice.thought:
                message["reasoning_content"] = choice.thought
            if choice.calls:
                calls = [self._told(call.id, call.name, call.arguments, call.custom) for call in choice.calls]
                message |= {"content": choice.text or None, "tool_calls": calls}
            choices.append(
                {
                    "index": choice.index,
                    "message": message,
                    "logprobs": self._logprobs(choice.tokens),
                    "finish_reason": choice.finish_reason,
                }
            )
        return {**self._head.members(), "choices": choices, **_counts(tally)}

    def _call(self, choice: int, piece: CallPiece) -> Json:
        """What a delta says of a call: its name and id at first, then its arguments as they come."""
        match piece:
            case CallBegun():
                self._calls[choice] = self._calls.get(choice, -1) + 1
                self._custom[choice] = piece.custom
                told = self._told(piece.id, piece.name, "", piece.custom)
            case CallGrown() if self._custom[choice]:
                told = {"custom": {"input": piece.arguments}}
            case CallGrown():
                told = {"function": {"arguments": piece.arguments}}
            case CallEnded():
                return {}
        return {"tool_calls": [{"index": self._calls[choice], **told}]}

    def _told(self, own_id: str, name: str, arguments: str, custom: bool) -> Json:
        identity = call_id(own_id, self._id_style)
        if custom:
            return {"id": identity, "type": "custom", "custom": {"name": name, "input": arguments}}
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head.members("chat.completion.chunk"), "choices": choices}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        if not self._with_logprobs:
            return None
        return {"content": scores(self._text, tokens), "refusal": None}


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
            _text_choice(each.index, self._echoes[each.index] + each.text, self._logprobs(each), each.finish_reason)
            for each in gathered(pieces)
        ]
        return {**self._head.members(), "choices": choices, **_counts(tally)}

    def _logprobs(self, piece: Piece | Whole) -> Json | None:
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


def _chat_choice(index: int, delta: Json, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _text_choice(index: int, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _counts(tally: Tally) -> Json:
    return {"usage": tally.usage(), "statistics": tally.statistics()}
