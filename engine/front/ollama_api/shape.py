"""Answers in the words of ollama's interface: an object for each piece, and one with the counts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from engine.front.answers import Piece, ScoredToken
from engine.front.forms.tools import call_id
from engine.front.gathered import gathered
from engine.front.shape import scores
from engine.front.tally import Tally
from engine.front.wire.dialects import OLLAMA, Dialect, Json, stamp
from engine.text.formats.pieces import Call, CallGatherer
from engine.text.text import Text

_NANO = 1_000_000_000


class OllamaShape:
    """Answers of /api/chat, or with `chat` false those of /api/generate."""

    dialect: Dialect = OLLAMA

    def __init__(self, model: str, chat: bool, scored: Text | None, id_style: str) -> None:
        """Log probabilities of tokens are told in the words of `scored`, if there is one."""
        self._model = model
        self._scored = scored
        self._chat = chat
        self._id_style = id_style
        self._reason = "stop"
        self._gatherer = CallGatherer()
        self._calls = 0  # that were told

    def opening(self, index: int) -> Sequence[Json]:
        return []

    def events(self, piece: Piece) -> Sequence[Json]:
        if piece.finish_reason is not None:
            self._reason = _reason(piece.finish_reason)
        call = None if piece.call is None else self._gatherer.add(piece.call)
        scored = self._scores(piece.tokens)
        if not (piece.text or piece.thought or call or scored):
            return []
        said = self._said(piece.text, piece.thought, () if call is None else (call,))
        return [{**self._head(), **said, **scored, "done": False}]

    def closing(self, tally: Tally) -> Sequence[Json]:
        return [{**self._head(), **self._said("", "", ()), **self._end(tally)}]

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        whole = gathered(pieces)[0]
        self._reason = _reason(whole.finish_reason)
        said = self._said(whole.text, whole.thought, whole.calls)
        return {**self._head(), **said, **self._scores(whole.tokens), **self._end(tally)}

    def _scores(self, tokens: Sequence[ScoredToken]) -> Json:
        return {"logprobs": scores(self._scored, tokens)} if self._scored is not None and tokens else {}

    def _head(self) -> Json:
        return {"model": self._model, "created_at": stamp(time.time())}

    def _said(self, text: str, thought: str, calls: Sequence[Call]) -> Json:
        thinking = {"thinking": thought} if thought else {}
        if not self._chat:
            return {"response": text, **thinking}
        message: Json = {"role": "assistant", "content": text, **thinking}
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        return {"message": message}

    def _call(self, call: Call) -> Json:
        """A call, which their clients take only whole."""
        self._calls += 1
        function = {"index": self._calls - 1, "name": call.name, "arguments": json.loads(call.arguments)}
        return {"id": call_id(call.id, self._id_style), "function": function}

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


def _reason(reason: str) -> str:
    return "length" if reason == "length" else "stop"
