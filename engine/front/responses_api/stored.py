"""Responses that later requests go on from. They are kept in memory alone, the latest of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.front.responses_api.items import Item, Items, kept
from engine.front.wire import fields
from engine.front.wire.fields import FieldError

MOST_RESPONSES = 512
MOST_BYTES = 256 * 2**20
_NOTHING: Item = {"role": "assistant", "content": ""}


@dataclass(frozen=True)
class Stored:
    """A response, and the items that it was made from."""

    response: Mapping[str, Any]
    inputs: Items
    size: int

    @property
    def conversation(self) -> Items:
        """The items that end with the response, which is an empty message where it has none itself."""
        return (*self.inputs, *(self.response["output"] or kept([_NOTHING])))


class StoredResponses:
    """Kept by their ids; the oldest go first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, Item] = {}  # of their outputs
        self._bytes = 0

    def get(self, identity: str) -> Stored | None:
        """None for one that is not there, or not any more."""
        return self._kept.get(identity)

    def add(self, response: Mapping[str, Any], inputs: Items) -> None:
        """Keep a response under its id."""
        stored = Stored(response, inputs, len(json.dumps([response, inputs])))
        self._kept[response["id"]] = stored
        self._bytes += stored.size
        self._items |= {item["id"]: item for item in response["output"]}
        while len(self._kept) > MOST_RESPONSES or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self.remove(next(iter(self._kept)))

    def remove(self, identity: str) -> bool:
        """Whether there was one."""
        stored = self._kept.pop(identity, None)
        if stored is None:
            return False
        self._bytes -= stored.size
        for item in stored.response["output"]:
            del self._items[item["id"]]
        return True

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
        return found
