"""The kernel that finds a selection, emulated, beside a sort: any sizes, equal words, short rows, rows not there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.device.sim import SimDriver

MIB = 1 << 20
SPARED = -7


def numbers_of(tokens: int, every: int, block: int) -> int:
    return -(-(tokens // every) // block)


@pytest.mark.parametrize("threads", [32, 512])
@pytest.mark.parametrize(
    ("top_k", "sets", "every", "block", "kinds"),
    [(5, 1, 1, 1, 3), (37, 1, 1, 1, 1 << 32), (4, 2, 1, 16, 2), (9, 1, 4, 1, 1), (1, 3, 2, 5, 1 << 32)],
)
def test_a_selection_is_what_a_stable_sort_begins_with(
    threads: int, top_k: int, sets: int, every: int, block: int, kinds: int
) -> None:
    """`kinds` are how many words differ. Tokens before `first` and those that are not live keep what they have."""
    random = np.random.default_rng(top_k)
    driver = SimDriver(64 * MIB)
    ends = np.array([9, 0, 3, 36, 37, 700, 1300, 88], np.int32)  # positions
    first, count, live = 2, 6, 7
    longest = int(ends.max()) + 1
    row_words = -(-numbers_of(longest, every, block) // 4) * 4
    stride = sets * top_k + 3
    data = {
        "words": random.integers(0, kinds, (count * sets, row_words), np.uint32),
        "longest": np.array([longest], np.int32),
        "positions": ends,
        "live": np.array([live], np.int32),
        "chosen": np.full((len(ends), stride), SPARED, np.int32),
    }
    memory = {name: driver.allocate(values.nbytes) for name, values in data.items()}
    for name, values in data.items():
        driver.upload(memory[name].address, values)
    args = [memory[name].address for name in ("words", "longest", "positions", "live")]
    stream = driver.stream()
    driver.launch(
        stream, driver.kernel("choose_smallest"), (count * sets, 1, 1), threads,
        (*args, first, sets, every, block, top_k, memory["chosen"].address, stride),
    )  # fmt: skip
    driver.synchronise(stream)
    found = np.empty_like(data["chosen"])
    driver.download(memory["chosen"].address, found)
    expected = np.full_like(found, SPARED)
    for token in range(first, live):
        numbers = numbers_of(int(ends[token]) + 1, every, block)
        for number in range(sets):
            words = data["words"][(token - first) * sets + number, :numbers]
            best = np.sort(np.argsort(words, kind="stable")[:top_k])
            expected[token, number * top_k :][:top_k] = np.pad(best, (0, top_k - len(best)), constant_values=-1)
    assert np.array_equal(found, expected)
