"""Responses that later requests go on from. They are kept in memory alone, the latest of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

from engine.front.responses_api.items import Item, Items, kept
from engine.front.wire import fields
from engine.front.wire.fields import FieldError

MOST_RESPONSES = 512
MOST_BYTES = 256 * 2**20
_NOTHING: Item = {"role": "assistant", "content": ""}
Texts = tuple[bytes, ...]


@dataclass(frozen=True)
class Stored:
    """A response but for its output, the items that it was made from, and its output, as JSON."""

    rest: bytes
    made_from: Texts
    output: Texts

    @property
    def response(self) -> Mapping[str, Any]:
        return {**json.loads(self.rest), "output": _items(self.output)}

    @property
    def inputs(self) -> Items:
        return _items(self.made_from)

    @property
    def conversation(self) -> Items:
        """The items that end with the response, which is an empty message where it has none itself."""
        return (*self.inputs, *(_items(self.output) or kept([_NOTHING])))

    @property
    def own_size(self) -> int:
        """Bytes that no other response shares."""
        return sum(map(getsizeof, (self.rest, self.made_from, self.output)))


class StoredResponses:
    """Kept by their ids; the oldest go first. An item of several of them is held once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, bytes] = {}  # of their outputs
        self._held: dict[bytes, _Held] = {}
        self._bytes = 0

    def get(self, identity: str) -> Stored | None:
        """None for one that is not there, or not any more."""
        return self._kept.get(identity)

    def add(self, response: Mapping[str, Any], inputs: Items) -> None:
        """Keep a response under its id."""
        output: Items = tuple(response["output"])
        stored = Stored(_text({**response, "output": ()}), self._hold(inputs), self._hold(output))
        self._kept[response["id"]] = stored
        self._bytes += stored.own_size
        self._items |= zip((item["id"] for item in output), stored.output, strict=True)
        while len(self._kept) > MOST_RESPONSES or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self.remove(next(iter(self._kept)))

    def remove(self, identity: str) -> bool:
        """Whether there was one."""
        stored = self._kept.pop(identity, None)
        if stored is None:
            return False
        self._bytes -= stored.own_size
        for text in stored.output:
            del self._items[json.loads(text)["id"]]
        for text in (*stored.made_from, *stored.output):
            self._release(text)
        return True

    def _hold(self, items: Items) -> Texts:
        held = []
        for text in map(_text, items):
            if text not in self._held:
                self._held[text] = _Held(text)
                self._bytes += getsizeof(text)
            self._held[text].times += 1
            held.append(self._held[text].text)
        return tuple(held)

    def _release(self, text: bytes) -> None:
        self._held[text].times -= 1
        if not self._held[text].times:
            del self._held[text]
            self._bytes -= getsizeof(text)

    def with_items(self, given: Any) -> Any:
        """The `input` of a request, with the items that it refers to by their ids. FieldError for an unknown id."""
        if not isinstance(given, list):
            return given
        told, referred = [], set[str]()
        for index, item in enumerate(given):
            if isinstance(item, dict) and item.get("type") == "item_reference":
                name = f"input[{index}].id"
                identity = fields.text(name, item.get("id"))
                if identity in referred:  # few bytes must not become many
                    raise FieldError(name, "this item is in the conversation already.", "Refer to it once.")
                referred.add(identity)
                told.append(self._item(name, identity))
            else:
                told.append(item)
        return told

    def _item(self, name: str, identity: str) -> Item:
        found = self._items.get(identity)
        if found is None:
            raise FieldError(name, "there is no such item.", "It was not stored, or long ago: send the item itself.")
        item: Item = json.loads(found)
        return item


@dataclass
class _Held:
    """An item, and how many times responses have it."""

    text: bytes
    times: int = 0


def _text(value: Item) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _items(texts: Texts) -> Items:
    return tuple(json.loads(text) for text in texts)
