"""A response, whole and as the events that make one up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.front.answers import Piece, Tally
from engine.front.forms.tools import call_id
from engine.front.wire.dialects import Dialect, Json, ResponsesDialect
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown

Keep = Callable[[Json], None]
_DELTAS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
_TOLD = {"function_call": ("name", "arguments"), "custom_tool_call": ("input",)}
"""What is told of a call once it is whole; the last of it is what has grown."""


class ResponseShape:
    """One response. `keep` gets it when it is complete."""

    def __init__(self, model: str, echoed: Mapping[str, Any], id_style: str, keep: Keep) -> None:
        self.dialect: Dialect = ResponsesDialect(self._failed)
        self.id = f"resp_{secrets.token_hex(24)}"
        self._model = model
        self._echoed = echoed
        self._id_style = id_style
        self._keep = keep
        self._created = int(time.time())
        self._events = 0
        self._output: list[Json] = []  # items; the last one is being made while `_open`
        self._open = False
        self._reason = "stop"

    def opening(self, index: int) -> Sequence[Json]:
        response = self._response("in_progress", None)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def events(self, piece: Piece) -> Sequence[Json]:
        events: list[Json] = []
        if piece.thought:
            events += self._grow("reasoning", piece.thought)
        if piece.text:
            events += self._grow("message", piece.text)
        match piece.call:
            case CallBegun():
                events += self._begin_call(piece.call)
            case CallGrown(arguments):
                item = self._output[-1]
                item[_TOLD[item["type"]][-1]] += arguments
                events.append(self._event(f"{_DELTAS[item['type']]}.delta", **self._place(), delta=arguments))
            case CallEnded():
                events += self._close()
        if piece.finish_reason is not None:
            self._reason = piece.finish_reason
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
        response = {**self._response("failed", None), "output": list(self._output), "error": why}
        return self._event("response.failed", response=response)

    def _finished(self, tally: Tally) -> Json:
        response = self._response("incomplete" if self._reason == "length" else "completed", tally)
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

    def _grow(self, kind: str, text: str) -> list[Json]:
        """The events of some more reasoning, or of some more of a message."""
        events: list[Json] = []
        if not self._open or self._output[-1]["type"] != kind:
            events += self._close()
            events += self._begin(kind)
        self._part()["text"] += text
        events.append(self._event(f"{_DELTAS[kind]}.delta", **self._place(), content_index=0, delta=text))
        return events

    def _begin(self, kind: str) -> list[Json]:
        item: Json = {"id": f"{'rs' if kind == 'reasoning' else 'msg'}_{secrets.token_hex(24)}", "type": kind}
        if kind == "reasoning":
            item |= {"summary": [], "content": [{"type": "reasoning_text", "text": ""}], "status": "in_progress"}
        else:
            item |= {"role": "assistant", "status": "in_progress"}
            item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        self._output.append(item)
        self._open = True
        added = self._event("response.output_item.added", output_index=self._index, item={**item, "content": []})
        part = dict(self._part())
        return [added, self._event("response.content_part.added", **self._place(), content_index=0, part=part)]

    def _close(self) -> list[Json]:
        """The events that end the item that is being made."""
        if not self._open:
            return []
        self._open = False
        item = self._output[-1]
        item["status"] = "completed"
        return [
            *self._done(item),
            self._event("response.output_item.done", output_index=self._index, item=dict(item)),
        ]

    def _done(self, item: Json) -> list[Json]:
        """What is told of an item's content when it is whole."""
        if item["type"] in _TOLD:
            told = {name: item[name] for name in _TOLD[item["type"]]}
            return [self._event(f"{_DELTAS[item['type']]}.done", **self._place(), **told)]
        part = dict(self._part())
        return [
            self._event(f"{_DELTAS[item['type']]}.done", **self._place(), content_index=0, text=part["text"]),
            self._event("response.content_part.done", **self._place(), content_index=0, part=part),
        ]

    def _begin_call(self, call: CallBegun) -> list[Json]:
        closing = self._close()
        kind, prefix = ("custom_tool_call", "ctc") if call.custom else ("function_call", "fc")
        item: Json = {
            "id": f"{prefix}_{secrets.token_hex(24)}",
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
    def _index(self) -> int:
        return len(self._output) - 1

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": self._index}

    def _part(self) -> Json:
        part: Json = self._output[-1]["content"][0]
        return part

    def _event(self, kind: str, **members: Any) -> Json:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **members}


def _usage(tally: Tally) -> Json:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.generated,
        "output_tokens_details": {"reasoning_tokens": tally.reasoned},
        "total_tokens": tally.prompt_tokens + tally.generated,
    }
