"""A response, whole and as the events that make one up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.front.answers import Piece
from engine.front.forms.tools import call_id
from engine.front.responses_api.items import new_id
from engine.front.responses_api.reasoning import carried
from engine.front.responses_api.requests import ResponseAsked
from engine.front.tally import Tally
from engine.front.wire.dialects import Dialect, Json, ResponsesDialect
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown

Keep = Callable[[Json], None]


@dataclass(frozen=True)
class _Words:
    """How an item of text is told: the list of parts that it has, such a part, and the names of its events."""

    item: str
    parts: str
    part: Mapping[str, Any]
    part_event: str
    text_event: str


_MESSAGE = _Words(
    "message",
    "content",
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "response.content_part",
    "response.output_text",
)
_REASONING = _Words(
    "reasoning",
    "content",
    {"type": "reasoning_text", "text": ""},
    "response.content_part",
    "response.reasoning_text",
)
_SUMMARY = _Words(
    "reasoning",
    "summary",
    {"type": "summary_text", "text": ""},
    "response.reasoning_summary_part",
    "response.reasoning_summary_text",
)
_CALLS = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
_TOLD = {"function_call": ("name", "arguments"), "custom_tool_call": ("input",)}
"""What is told of a call once it is whole; the last of it is what has grown."""


class ResponseShape:
    """One response. `keep` gets it when it is complete."""

    def __init__(self, model: str, asked: ResponseAsked, id_style: str, keep: Keep) -> None:
        self.dialect: Dialect = ResponsesDialect(self._failed)
        self.id = f"resp_{secrets.token_hex(24)}"
        self._model = model
        self._echoed = asked.echoed or {}
        self._reasoning = _SUMMARY if asked.summarises else _REASONING
        self._carries = asked.carries
        self._id_style = id_style
        self._keep = keep
        self._created = int(time.time())
        self._events = 0
        self._output: list[Json] = []  # items; the last one is being made while `_open`
        self._open = False
        self._words = _MESSAGE  # of the item that is being made, where it is one of text
        self._reason = "stop"

    def opening(self, index: int) -> Sequence[Json]:
        response = self._response("in_progress", None)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def events(self, piece: Piece) -> Sequence[Json]:
        events: list[Json] = []
        self._reason = piece.finish_reason or self._reason
        if piece.thought:
            events += self._grow(self._reasoning, piece.thought)
        if piece.text:
            events += self._grow(_MESSAGE, piece.text)
        match piece.call:
            case CallBegun():
                events += self._begin_call(piece.call)
            case CallGrown(arguments):
                item = self._output[-1]
                item[_TOLD[item["type"]][-1]] += arguments
                events.append(self._event(f"{_CALLS[item['type']]}.delta", **self._place(), delta=arguments))
            case CallEnded():
                events += self._close()
        if piece.finish_reason is not None:
            events += self._close()
        return events

    def closing(self, tally: Tally) -> Sequence[Json]:
        response = self._finished(tally)
        return [self._event(f"response.{response['status']}", response=response)]

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        for piece in pieces:
            self.events(piece)
        return {**self._finished(tally), "statistics": tally.statistics()}

    def _failed(self, why: Json) -> Json:
        if self._open:
            self._output[-1]["status"] = "incomplete"
        response = {**self._response("failed", None), "output": list(self._output), "error": why}
        return self._event("response.failed", response=response)

    def _finished(self, tally: Tally) -> Json:
        response = self._response(self._status, tally)
        self._keep(response)
        return response

    def _response(self, status: str, tally: Tally | None) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": list(self._output) if tally is not None else [],
            **self._echoed,
            "usage": None if tally is None else _usage(tally),
        }

    def _grow(self, words: _Words, text: str) -> list[Json]:
        """The events of some more reasoning, or of some more of a message."""
        events: list[Json] = []
        if not self._open or self._output[-1]["type"] != words.item:
            events += self._close()
            events += self._begin(words)
        self._part()["text"] += text
        events.append(self._of_part(f"{words.text_event}.delta", delta=text))
        return events

    def _begin(self, words: _Words) -> list[Json]:
        self._open, self._words = True, words
        item: Json = {"id": new_id(words.item), "type": words.item}
        if words.item == "reasoning":
            item["summary"] = []
        else:
            item["role"] = "assistant"
        item |= {"status": "in_progress", words.parts: []}
        added = self._event("response.output_item.added", output_index=len(self._output), item=item)
        self._output.append({**item, words.parts: [dict(words.part)]})
        return [added, self._of_part(f"{words.part_event}.added", part=words.part)]

    def _close(self) -> list[Json]:
        """The events that end the item that is being made."""
        if not self._open:
            return []
        self._open = False
        item = self._output[-1]
        item["status"] = self._status
        if item["type"] == "reasoning" and self._carries:
            item["encrypted_content"] = carried(self._part()["text"])
        return [
            *self._done(item),
            self._event("response.output_item.done", output_index=self._index, item=dict(item)),
        ]

    def _done(self, item: Json) -> list[Json]:
        """What is told of an item's content when it is whole."""
        if item["type"] in _TOLD:
            told = {name: item[name] for name in _TOLD[item["type"]]}
            return [self._event(f"{_CALLS[item['type']]}.done", **self._place(), **told)]
        part = self._part()
        return [
            self._of_part(f"{self._words.text_event}.done", text=part["text"]),
            self._of_part(f"{self._words.part_event}.done", part=part),
        ]

    def _begin_call(self, call: CallBegun) -> list[Json]:
        closing = self._close()
        kind = "custom_tool_call" if call.custom else "function_call"
        item: Json = {
            "id": new_id(kind),
            "type": kind,
            "status": "in_progress",
            "call_id": call_id(call.id, self._id_style),
            "name": call.name,
            _TOLD[kind][-1]: "",
        }
        self._output.append(item)
        self._open = True
        return [*closing, self._event("response.output_item.added", output_index=self._index, item=dict(item))]

    @property
    def _status(self) -> str:
        """Of what ends now."""
        return "incomplete" if self._reason == "length" else "completed"

    @property
    def _index(self) -> int:
        return len(self._output) - 1

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": self._index}

    def _part(self) -> Json:
        """The one part of the item of text that is being made."""
        part: Json = self._output[-1][self._words.parts][0]
        return part

    def _of_part(self, kind: str, **members: Any) -> Json:
        """An event of that part; of the text of a message it has log probabilities, of which there are none."""
        scores: Json = {"logprobs": []} if kind.startswith(_MESSAGE.text_event) else {}
        return self._event(kind, **self._place(), **{f"{self._words.parts}_index": 0}, **members, **scores)

    def _event(self, kind: str, **members: Any) -> Json:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **members}


def _usage(tally: Tally) -> Json:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": tally.generated,
        "output_tokens_details": {"reasoning_tokens": tally.reasoned},
        "total_tokens": tally.prompt_tokens + tally.generated,
    }
