"""Responses that later requests go on from. They are kept in memory alone, the latest of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.front.custom_tools import call_of
from engine.front.responses_api.requests import Messages

MOST_RESPONSES = 512
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Stored:
    """A response, and the conversation that ends with it."""

    response: Mapping[str, Any]
    conversation: Messages
    size: int


class StoredResponses:
    """Kept by their ids; the oldest go first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._bytes = 0

    def get(self, identity: str) -> Stored | None:
        """None for one that is not there, or not any more."""
        return self._kept.get(identity)

    def add(self, response: Mapping[str, Any], conversation: Messages) -> None:
        """Keep a response under its id."""
        told = (*conversation, *_said(response))
        stored = Stored(response, told, len(json.dumps([response, told])))
        self._kept[response["id"]] = stored
        self._bytes += stored.size
        while len(self._kept) > MOST_RESPONSES or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self._bytes -= self._kept.popitem(last=False)[1].size

    def remove(self, identity: str) -> bool:
        """Whether there was one."""
        stored = self._kept.pop(identity, None)
        self._bytes -= 0 if stored is None else stored.size
        return stored is not None


def _said(response: Mapping[str, Any]) -> Messages:
    """The assistant's message that a response is."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for item in response["output"]:
        match item["type"]:
            case "reasoning":
                message["reasoning_content"] = message.get("reasoning_content", "") + item["content"][0]["text"]
            case "message":
                message["content"] += item["content"][0]["text"]
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case "custom_tool_call":
                custom = call_of(item["call_id"], item["name"], item["input"])
                message.setdefault("tool_calls", []).append(custom)
    return (message,)
