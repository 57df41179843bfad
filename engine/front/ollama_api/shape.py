"""Answers in the words of ollama's interface: an object for each piece, and one with the counts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from engine.front.answers import Piece, Tally
from engine.front.dialects import OLLAMA, Dialect, Json
from engine.front.tools import call_id

_NANO = 1_000_000_000


class OllamaShape:
    """Answers of /api/chat, or with `chat` false those of /api/generate."""

    dialect: Dialect = OLLAMA

    def __init__(self, model: str, chat: bool, id_style: str = "") -> None:
        self._model = model
        self._chat = chat
        self._id_style = id_style
        self._reason = "stop"

    def opening(self, index: int) -> Sequence[Json]:
        return []

    def events(self, piece: Piece) -> Sequence[Json]:
        if piece.finish_reason is not None:
            self._reason = _reason(piece.finish_reason)
        if not (piece.text or piece.thought or piece.calls):
            return []
        return [{**self._head(), **self._said(piece), "done": False}]

    def closing(self, tally: Tally) -> Sequence[Json]:
        return [{**self._head(), **self._said(Piece(0)), **self._end(tally)}]

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        joined = Piece(
            0,
            "".join(piece.text for piece in pieces),
            thought="".join(piece.thought for piece in pieces),
            calls=tuple(call for piece in pieces for call in piece.calls),
        )
        self._reason = _reason(pieces[-1].finish_reason or "stop")
        return {**self._head(), **self._said(joined), **self._end(tally)}

    def _head(self) -> Json:
        return {"model": self._model, "created_at": stamp(time.time())}

    def _said(self, piece: Piece) -> Json:
        thinking = {"thinking": piece.thought} if piece.thought else {}
        if not self._chat:
            return {"response": piece.text, **thinking}
        message: Json = {"role": "assistant", "content": piece.text, **thinking}
        if piece.calls:
            message["tool_calls"] = [
                {
                    "id": call_id(call, self._id_style),
                    "function": {"index": index, "name": call.name, "arguments": json.loads(call.arguments)},
                }
                for index, call in enumerate(piece.calls)
            ]
        return {"message": message}

    def _end(self, tally: Tally) -> Json:
        """The counts; `prompt_eval_count` is of the whole prompt, its duration of what was not reused."""
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": int((time.monotonic() - tally.began) * _NANO),
            "load_duration": 0,
            "prompt_eval_count": tally.prompt_tokens,
            "prompt_eval_duration": int(tally.prompt_seconds * _NANO),
            "eval_count": tally.generated,
            "eval_duration": int(tally.decode_seconds * _NANO),
            "statistics": tally.statistics(),
        }


def stamp(seconds: float) -> str:
    """A time as their interface writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _reason(reason: str) -> str:
    return "length" if reason == "length" else "stop"
