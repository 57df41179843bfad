"""Blocks that change places in the memory of a device: the simulated device's way, and the one by a kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.device import block_moves
from engine.device.block_moves import BlockMover
from engine.device.driver import Stream
from engine.device.sim import SimDriver

Move = Callable[[Stream, int, int, NDArray[np.int32]], None]
WAYS: dict[str, Callable[[SimDriver], Move]] = {
    "copies": lambda driver: driver.move_blocks,
    "kernel": lambda driver: BlockMover(driver).move,
}


def moved(way: str, blocks: int, size: int, moves: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The array before and after."""
    driver = SimDriver(memory=64 << 20)
    move = WAYS[way](driver)
    memory = driver.allocate(blocks * size)
    before = np.random.default_rng(blocks).integers(0, 256, (blocks, size), np.uint8)
    driver.upload(memory.address, before)
    stream = driver.stream("moves")
    move(stream, memory.address, size, moves)
    driver.synchronise(stream)
    after = np.zeros_like(before)
    driver.download(memory.address, after)
    return before, after


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_block_arrives_and_no_other_byte_changes(way: str, data: st.DataObject) -> None:
    blocks, size = data.draw(st.integers(2, 40)), 16 * data.draw(st.integers(1, 2100))
    places = data.draw(st.permutations(range(blocks)))
    count = data.draw(st.integers(0, blocks // 2))
    moves = np.array([places[:count], places[count : 2 * count]], np.int32).T
    before, after = moved(way, blocks, size, moves)
    before[moves[:, 1]] = before[moves[:, 0]]
    assert np.array_equal(after, before)


def test_more_moves_than_a_launch_has_are_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_moves, "MOST_MOVES", 8)
    moves = np.stack([np.arange(40, 59), np.arange(19)], axis=1).astype(np.int32)
    before, after = moved("kernel", 64, 4096, moves)
    assert np.array_equal(after[:19], before[40:59])
    assert np.array_equal(after[19:], before[19:])


@pytest.mark.parametrize(("moves", "launches"), [(0, 0), (1, 1), (4096, 1), (4097, 2)])
def test_launches_do_not_follow_the_number_of_blocks(moves: int, launches: int) -> None:
    driver = SimDriver(memory=64 << 20)
    memory = driver.allocate(2 * 4097 * 16)
    stream = driver.stream("moves")
    pairs = np.stack([np.arange(4097, 4097 + moves), np.arange(moves)], axis=1).astype(np.int32)
    BlockMover(driver).move(stream, memory.address, 16, pairs)
    driver.synchronise(stream)
    assert driver.counters("fill").launches == launches


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "moves", "words"),
    [
        (4096, [[0, 1], [1, 2]], "copied from and copied to"),
        (4096, [[0, 2], [1, 2]], "copied to one place"),
        (4096, [[-1, 2]], "below the first"),
        (4100, [[0, 1]], "blocks of 4100 bytes"),
        (0, [[0, 1]], "blocks of 0 bytes"),
    ],
)
def test_moves_that_cannot_be_are_our_own_mistakes(way: str, size: int, moves: list[list[int]], words: str) -> None:
    driver = SimDriver(memory=1 << 20)
    memory = driver.allocate(4 * 4096)
    with pytest.raises(AssertionError, match=words):
        WAYS[way](driver)(driver.stream(), memory.address, size, np.array(moves, np.int32))


def test_a_block_beyond_the_memory_is_refused_by_the_simulated_device() -> None:
    driver = SimDriver(memory=1 << 20)
    memory = driver.allocate(4 * 4096)
    stream = driver.stream()
    driver.move_blocks(stream, memory.address, 4096, np.array([[4, 0]], np.int32))
    with pytest.raises(AssertionError, match="no memory of the device"):
        driver.synchronise(stream)
