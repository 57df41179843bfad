"""The file of a saved context: what is refused, and that a file is there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.base.errors import BusyError, CorruptFileError, DoesNotFitError, FreetokenError, UnsupportedError
from engine.memory.blocks import BlockKind
from engine.memory.saved import SavedPage
from engine.worker.context_file import ContextHeader, ContextIdentity, ContextReader, ContextWriter

MINE = ContextIdentity("demo", "w1", "p1", "cpu", "1.0")
SIZES: Mapping[BlockKind, int] = {"page": 40, "window": 24, "state": 100}
PAGES = (SavedPage(), SavedPage(window=True), SavedPage(window=True, checkpoint=True), SavedPage())
HEADER = ContextHeader(MINE, tuple(range(64)), PAGES, SIZES)


def blocks_of(header: ContextHeader) -> list[bytes]:
    sizes = [header.block_bytes[kind] for _, kind in header.blocks]
    return [bytes((number + index) % 251 for index in range(size)) for number, size in enumerate(sizes)]


def write(path: Path, header: ContextHeader = HEADER) -> int:
    writer = ContextWriter(path, header)
    for block in blocks_of(header):
        writer.add(np.frombuffer(block, np.uint8))
    writer.finish()
    return writer.size


def read(path: Path, mine: ContextIdentity = MINE, sizes: Mapping[BlockKind, int] = SIZES) -> Any:
    reader = ContextReader(path, mine, sizes)
    try:
        return reader.header, [reader.next(kind) for _, kind in reader.header.blocks]
    finally:
        reader.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    size = write(tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == size
    assert read(tmp_path / "a") == (HEADER, blocks_of(HEADER))
    plain = replace(HEADER, block_bytes={"page": 40, "window": 0, "state": 0}, pages=(SavedPage(checkpoint=True),) * 4)
    write(tmp_path / "a", plain)
    assert read(tmp_path / "a", sizes=plain.block_bytes)[1] == blocks_of(plain), "without states none is written"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(MINE, weights="w2"), "another conversion of demo"),
        (replace(MINE, weights="w2", model="other"), "the model demo, not to other"),
        (replace(MINE, release="2.0"), "freetoken 1.0, and this is 2.0"),
        (replace(MINE, device="sim"), "on the device cpu, and the model runs on sim"),
        (replace(MINE, program="p2"), "other settings"),
    ],
)
def test_what_belongs_to_something_else_is_refused(tmp_path: Path, other: ContextIdentity, words: str) -> None:
    write(tmp_path / "a")
    with pytest.raises(UnsupportedError, match=words):
        read(tmp_path / "a", other)
    assert read(tmp_path / "a", replace(MINE, model="renamed"))[0] == HEADER, "the weights are what matters"


def test_blocks_of_another_size_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    with pytest.raises(CorruptFileError, match="size"):
        read(tmp_path / "a", sizes={**SIZES, "page": 48})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a"
    write(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["cut", "flip", "insert", "zero tail"])):
        case "cut":
            del content[place:]
        case "flip":
            content[place] ^= data.draw(st.integers(1, 255))
        case "insert":
            content[place:place] = b"?"
        case _:
            content[place:] = bytes(len(content) - place)
            content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises((CorruptFileError, UnsupportedError)):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1, 2]}, {"tokens": ["a"] * 64}, {"tokens": [True] * 64}, {"tokens": 7}, {"identity": {}},
        {"identity": None}, {"block_bytes": {"page": 1}}, {"block_bytes": {"page": -1, "window": 0, "state": 0}},
        {"windows": 3}, {"windows": [[]]}, {"checkpoints": None},
    ],
)  # fmt: skip
def test_a_header_of_the_wrong_shape_is_a_value_error(change: dict[str, Any]) -> None:
    content = {
        "identity": vars(MINE), "tokens": list(range(64)), "windows": [1, 2], "checkpoints": [2],
        "block_bytes": dict(SIZES),
    }  # fmt: skip
    assert ContextHeader.from_json(content) == HEADER
    with pytest.raises(ValueError):  # noqa: PT011 - its text is nobody's business
        ContextHeader.from_json({**content, **change})
    with pytest.raises(ValueError):  # noqa: PT011
        ContextHeader.from_json([])


def test_two_at_once(tmp_path: Path) -> None:
    first = ContextWriter(tmp_path / "a", HEADER)
    with pytest.raises(BusyError, match="being written"):
        ContextWriter(tmp_path / "a", HEADER)
    first.abandon()
    first.abandon()
    assert os.listdir(tmp_path) == []
    write(tmp_path / "a")


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    writer = ContextWriter(tmp_path / "a", replace(HEADER, tokens=tuple(range(100, 164))))
    writer.add(np.zeros(40, np.uint8))
    assert (tmp_path / "a").read_bytes() == before
    writer.abandon()
    assert (tmp_path / "a").read_bytes() == before
    assert os.listdir(tmp_path) == ["a"]


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [1000]
    real = os.write

    def write_some(file: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(file, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write_some)
    writer = ContextWriter(tmp_path / "a", HEADER)
    with pytest.raises(FreetokenError, match="No space left on device"):
        writer.add(np.zeros(2000, np.uint8))
    writer.abandon()
    room[0] = 10
    with pytest.raises(FreetokenError, match="No space left"):
        ContextWriter(tmp_path / "a", HEADER)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_noticed_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 0, 100))
    with pytest.raises(DoesNotFitError, match="too little"):
        ContextWriter(tmp_path / "a", HEADER)
    assert os.listdir(tmp_path) == []


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".a.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(FreetokenError):
        ContextWriter(tmp_path / "a", HEADER)
    assert (tmp_path / "precious").read_text() == "precious"
