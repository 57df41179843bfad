"""Running an executor over a prompt in several ways, and comparing it with what transformers says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Executor

from .tiny import Truth

Floats = NDArray[np.float32]
TOLERANCE = 1e-4  # of the largest value


@dataclass(frozen=True)
class Difference:
    """The largest difference at one place, as a share of the largest value there."""

    place: str
    share: float
    row: int


def batch(
    tokens: Sequence[int],
    start: int,
    pages: NDArray[np.int32],
    rows: Sequence[int],
    saves: Sequence[tuple[int, int]] = (),
) -> Batch:
    """One sequence's tokens from position `start` on. `saves` are tokens, counted from 0, and the slots for states."""
    return Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=np.arange(start, start + len(tokens), dtype=np.int32),
        seq_starts=np.asarray([0, len(tokens)], np.int32),
        page_tables=(pages,),
        rows=np.asarray(rows, np.int32),
        window_tables=(pages,),
        states=np.zeros(1, np.int32),
        saves=np.asarray(saves, np.int32).reshape(-1, 2),
    )


def page_table(executor: Executor, tokens: int, seed: int = 0) -> NDArray[np.int32]:
    """Pages for that many tokens, in an order of no meaning; the cache grows if it has to."""
    count = -(-tokens // executor.page_tokens)
    room = max(executor.room.pages, count + 3)
    executor.resize_context(ContextRoom(room, room, 2))
    order = np.random.default_rng(seed).permutation(room)
    return order[:count].astype(np.int32)


def differences(executor: Executor, truth: Truth) -> list[Difference]:
    """How far the hidden states after each layer, and the logits of all rows, are from the truth, in that order."""
    ours = truth_of(executor, truth)
    layers = enumerate(zip(of_theirs(ours.states, truth), truth.states, strict=True))
    pairs = [(f"layer {i}", state, expected) for i, (state, expected) in layers]
    return [difference(*pair) for pair in (*pairs, ("logits", ours.logits, truth.logits))]


def truth_of(executor: Executor, truth: Truth) -> Truth:
    """What an executor says to the same prompt, as something to compare others with."""
    pages, rows = page_table(executor, len(truth.prompt)), range(len(truth.prompt))
    states = executor.trace(batch(truth.prompt, 0, pages, rows))
    logits = executor.step(batch(truth.prompt, 0, pages, rows))
    return Truth(truth.prompt, tuple(states), logits, ())


def difference(place: str, ours: Floats, theirs: Floats) -> Difference:
    assert ours.shape == theirs.shape, f"{place}: {ours.shape} against {theirs.shape}"
    gaps = np.abs(ours - theirs)
    gaps[~np.isfinite(ours)] = np.inf
    worst = int(gaps.max(axis=-1).argmax())
    return Difference(place, float(gaps.max() / np.abs(theirs).max()), worst)


def of_theirs(states: Sequence[Floats], truth: Truth) -> Sequence[Floats]:
    """The states after whole layers of the truth, one of which may be several of ours."""
    several = len(states) // len(truth.states)
    return states[several - 1 :: several]


def agrees(executor: Executor, truth: Truth) -> bool:
    """Whether all that `differences` compares agrees; logits are computed only where all states do."""
    pages, rows = page_table(executor, len(truth.prompt)), range(len(truth.prompt))
    states = of_theirs(executor.trace(batch(truth.prompt, 0, pages, rows)), truth)
    if any(difference("", *pair).share > TOLERANCE for pair in zip(states, truth.states, strict=True)):
        return False
    logits = executor.step(batch(truth.prompt, 0, pages, rows))
    return difference("logits", logits, truth.logits).share <= TOLERANCE


def greedy(executor: Executor, truth: Truth) -> tuple[int, ...]:
    """The tokens that the executor would say after the prompt, decoded one by one."""
    pages = page_table(executor, len(truth.prompt) + len(truth.greedy))
    logits = executor.step(batch(truth.prompt, 0, pages, [len(truth.prompt) - 1]))
    said: list[int] = []
    for position in range(len(truth.prompt), len(truth.prompt) + len(truth.greedy)):
        said.append(int(logits[0].argmax()))
        logits = executor.step(batch(said[-1:], position, pages, [0]))
    return tuple(said)


def resumed(executor: Executor, other: Executor, tokens: Sequence[int], at: int) -> tuple[Floats, Floats]:
    """Logits of the rows from token `at` on, of a prompt that goes on from a state that was saved there.

    First where it was saved, after all of another end of the prompt was read; then in `other`, into which all blocks
    are carried. Both have the same pages.
    """
    pages, rest = page_table(executor, len(tokens)), tokens[at:]
    assert (page_table(other, len(tokens)) == pages).all()
    executor.step(batch([*tokens[:at], *reversed(rest)], 0, pages, (), saves=[(at - 1, 1)]))
    for kind, blocks in (("page", pages), ("window", pages), ("state", [1])):
        for block in blocks if executor.block_bytes[kind] else ():
            other.write_block(kind, block, executor.read_block(kind, block))
    found = []
    for each in (executor, other):
        if each.block_bytes["state"]:
            each.copy_block("state", 1, 0)
        found.append(each.step(batch(rest, at, pages, range(len(rest)))))
    return found[0], found[1]


def in_chunks(executor: Executor, tokens: Sequence[int], sizes: Sequence[int]) -> Floats:
    """Logits of every row, with the prompt cut into chunks of these sizes (the last one as often as needed)."""
    pages = page_table(executor, len(tokens), seed=len(sizes))
    parts, start, remaining = [], 0, list(sizes)
    while start < len(tokens):
        size = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        chunk = tokens[start : start + size]
        parts.append(executor.step(batch(chunk, start, pages, range(len(chunk)))))
        start += len(chunk)
    return np.concatenate(parts)
