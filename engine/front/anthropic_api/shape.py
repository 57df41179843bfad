"""Answers in the words of Anthropic's interface: a message of blocks, whole and streamed."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence

from engine.front.answers import Piece
from engine.front.forms.tools import call_id
from engine.front.tally import Tally
from engine.front.wire.dialects import ANTHROPIC, Dialect, Json
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageShape:
    """`message` and the events that make one up."""

    dialect: Dialect = ANTHROPIC

    def __init__(self, model: str, prompt_tokens: int, id_style: str) -> None:
        """`prompt_tokens` is told at once; how many of them were reused shows later."""
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._id_style = id_style
        self._blocks = 0
        self._open = ""  # the type of the block that is being sent
        self._thought = hashlib.sha256()  # a signature that clients send back; nothing here depends on it
        self._last = Piece(0)

    def opening(self, index: int) -> Sequence[Json]:
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        return [{"type": "message_start", "message": self._message([], None, None, usage)}]

    def events(self, piece: Piece) -> Sequence[Json]:
        events: list[Json] = []
        if piece.thought:
            events += self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thought.update(piece.thought.encode())
            events.append(self._delta({"type": "thinking_delta", "thinking": piece.thought}))
        if piece.text:
            events += self._into("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": piece.text}))
        match piece.call:
            case CallBegun(name, own_id):
                events += self._close()
                identity = call_id(own_id, self._id_style).replace("call_", "toolu_")
                events += self._into("tool_use", {"type": "tool_use", "id": identity, "name": name, "input": {}})
            case CallGrown(arguments):
                events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
            case CallEnded():
                events += self._close()
        if piece.finish_reason is not None:
            self._last = piece
            events += self._close()
        return events

    def closing(self, tally: Tally) -> Sequence[Json]:
        delta = {"stop_reason": _reason(self._last), "stop_sequence": self._last.stopped}
        counts = {"usage": _usage(tally), "statistics": tally.statistics()}
        return [{"type": "message_delta", "delta": delta, **counts}, {"type": "message_stop"}]

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        blocks: list[Json] = []
        arguments: list[str] = []
        for event in (event for piece in pieces for event in self.events(piece)):
            match event:
                case {"content_block": block}:
                    blocks.append(block)
                case {"delta": {"partial_json": part}}:
                    arguments.append(part)
                case {"delta": delta}:
                    kind = delta["type"].removesuffix("_delta")
                    blocks[-1][kind] += delta[kind]
                case {"type": "content_block_stop"} if arguments:
                    blocks[-1]["input"] = json.loads("".join(arguments))
                    arguments.clear()
        return {
            **self._message(blocks, _reason(self._last), self._last.stopped, _usage(tally)),
            "statistics": tally.statistics(),
        }

    def _message(self, content: list[Json], reason: str | None, stopped: str | None, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stopped,
            "usage": usage,
        }

    def _into(self, kind: str, block: Json) -> list[Json]:
        """The events that open a block of a kind, unless one is open."""
        if self._open == kind:
            return []
        closing = self._close()
        self._open = kind
        return [*closing, {"type": "content_block_start", "index": self._blocks, "content_block": block}]

    def _close(self) -> list[Json]:
        if not self._open:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": self._thought.hexdigest()}))
        events.append({"type": "content_block_stop", "index": self._blocks})
        self._blocks += 1
        self._open = ""
        return events

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}


def _reason(last: Piece) -> str:
    return "stop_sequence" if last.stopped is not None else _REASONS.get(last.finish_reason or "", "end_turn")


def _usage(tally: Tally) -> Json:
    """Their counts leave what was reused out of `input_tokens`."""
    return {
        "input_tokens": tally.prompt_tokens - tally.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached_tokens,
        "output_tokens": tally.generated,
    }
