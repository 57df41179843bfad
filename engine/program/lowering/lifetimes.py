"""Which buffers may share storage, so that a step works in little memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.program.ir import Buffer, Op

Span = tuple[int, int]  # first and last operation of a layer that touches a buffer


def share_storage(buffers: Mapping[str, Buffer], ops: Sequence[Op], keep: tuple[str, ...]) -> dict[str, Buffer]:
    """Turn buffers into views of wider ones that are never alive at the same time.

    Every buffer except those in `keep` lives within single layers, from the first operation that touches it to the
    last. Kept ones stay as they are.
    """
    spans = _spans(buffers, ops)
    owners: dict[str, list[str]] = {}  # buffer with storage -> all buffers that use it
    order = sorted((name for name in spans if name not in keep), key=lambda name: -buffers[name].width)
    for name in order:
        for owner, users in owners.items():
            alike = (buffers[owner].domain, buffers[owner].dtype) == (buffers[name].domain, buffers[name].dtype)
            if alike and not any(_meet(spans[name], spans[user]) for user in users):
                users.append(name)
                break
        else:
            owners[name] = [name]
    owner_of = {user: owner for owner, users in owners.items() for user in users}
    return {name: _place(name, buffer, owner_of) for name, buffer in buffers.items()}


def _place(name: str, buffer: Buffer, owner_of: Mapping[str, str]) -> Buffer:
    root = buffer.base or name
    owner = owner_of.get(root, root)
    return buffer if owner in (root, name) else replace(buffer, base=owner)


def _spans(buffers: Mapping[str, Buffer], ops: Sequence[Op]) -> dict[str, dict[int, Span]]:
    """For each buffer that is not a view, its span in every layer that touches it or a view of it."""
    spans: dict[str, dict[int, Span]] = {name: {} for name, buffer in buffers.items() if not buffer.base}
    for index, op in enumerate(ops):
        for name in filter(None, (*op.reads, *op.writes)):
            of_layer = spans[buffers[name].base or name]
            first, _ = of_layer.get(op.layer, (index, index))
            of_layer[op.layer] = (first, index)
    return spans


def _meet(one: Mapping[int, Span], other: Mapping[int, Span]) -> bool:
    return any(
        layer in other and first <= other[layer][1] and other[layer][0] <= last for layer, (first, last) in one.items()
    )
