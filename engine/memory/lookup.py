"""How much of a prompt is there, from where it can be taken up, and why not from later. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.memory.pages import PAGE_TOKENS
from engine.memory.radix import Node, RadixTree
from engine.memory.windows import first_seen


@dataclass(frozen=True)
class ContextTraits:
    """What a model's layers keep of a sequence besides whole pages.

    `reach` is how far back window pages are read (0: there are none); `stateful` models have recurrent states. Models
    that are not `paged` keep nothing in pages, since all their layers have a reach or a state.
    """

    reach: int = 0
    stateful: bool = False
    paged: bool = True


ReuseReason = Literal["last", "new", "differs", "state", "window", "forgotten"]
"""last: all was reused but the last token and the page that holds it; new: nothing like it was computed; differs: it
parts from what was computed; state, window: at a later page border the recurrent state is missing, or the window pages
that a token there sees; forgotten: what follows was there, and made way."""


@dataclass(frozen=True)
class Reuse:
    """`position` tokens need no computing, `known` were computed before; `why` says why `position` is no larger."""

    position: int
    known: int
    why: ReuseReason


@dataclass(frozen=True)
class Found:
    """What the tree has for a prompt: the nodes up to where it can be taken up, those after it that it holds too."""

    path: list[Node]
    reuse: Reuse


def look_up(tree: RadixTree, traits: ContextTraits, path: Sequence[Node], tokens: Sequence[int]) -> Found:
    """Find the best place to take up `tokens`, of which `path` is there already.

    The last token is never taken from the cache: its logits are still wanted.
    """
    limit = (len(tokens) - 1) // PAGE_TOKENS
    nodes = [*path, *tree.match(tokens, limit, path[-1] if path else tree.root)]
    depth = state = len(path)  # where to take it up; the deepest border with a state
    run = 0  # window pages in a row
    for node in nodes:
        run = run + 1 if node.window >= 0 else 0
        if node.depth <= len(path):
            continue
        if traits.stateful and node.checkpoint is None:
            continue
        state = node.depth
        if not traits.reach or run >= node.depth - first_seen(node.depth * PAGE_TOKENS, traits.reach):
            depth = node.depth
    last = nodes[-1] if nodes else tree.root
    known = len(nodes) * PAGE_TOKENS + tree.shared_part(last, tokens)
    why: ReuseReason
    if depth == limit:
        why = "last"
    elif depth < len(nodes):
        why = "state" if state == depth else "window"
    elif tree.forgot(last, tokens):
        why = "forgotten"
    else:
        why = "differs" if known else "new"
    return Found(nodes[:depth], Reuse(depth * PAGE_TOKENS, known, why))
