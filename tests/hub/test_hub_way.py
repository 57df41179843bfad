"""What goes wrong on the way of a pull changes nothing of what it gives, and nothing is fetched twice without need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.pulling.pull import pull_cost
from engine.files.pulling.repository import FETCH_AND_CONVERT
from engine.files.pulling.target import find_target
from engine.files.store import Store
from tests.hub.pulling import REPO, Interrupted, by_layer, contents, pull_it, until
from tests.hub.server import Fault, HubServer
from tests.unit.converting import write_tokenizer

STORED = "/storage/"


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(STORED, drop_after=50_000, times=3)],
        [Fault("00003-of-00005", flip=200_000, times=2)],
        [Fault("00001-of-00005", empty=True), Fault("00002-of-00005", short=10)],
        [Fault("config.json", drop_after=5), Fault("tokenizer.json", flip=1)],
        [Fault("/resolve/", status=503, times=3), Fault(STORED, ignore_range=True, times=3)],
    ],
)
def test_faults_change_nothing(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes], faults: list[Fault]
) -> None:
    server.add(REPO, files)
    server.faults = faults
    assert contents(pull_it(tmp_path)) == expected
    assert all(fault.times == 0 for fault in faults)


@pytest.mark.parametrize("told", [b"F99", b"I32"], ids=["no type", "a type that cannot be converted"])
def test_a_header_that_was_damaged_on_the_way_is_asked_for_again(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes], told: bytes
) -> None:
    shard = "model-00001-of-00005.safetensors"
    commit = server.add(REPO, files)
    place = files[shard].index(b"F32")
    server.faults = [Fault(f"{STORED}{REPO}/{commit}/{shard}", change=(place, told))]
    assert contents(pull_it(tmp_path)) == expected
    assert server.faults[0].times == 0


def test_a_header_that_makes_no_sense_twice_is_believed(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    shard = "model-00001-of-00005.safetensors"
    server.add(REPO, files | {shard: files[shard].replace(b'"F32"', b'"I32"')})
    with pytest.raises(UnsupportedError, match="i32"):
        pull_it(tmp_path)
    assert not Store(tmp_path / "store").downloads("tiny-moe").exists()


def test_a_beginning_that_makes_sense_and_is_wrong_is_found_out(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    """Two tensors of one shape that changed names give a plan that could be carried out; the file's hash tells."""
    shard, header, (one, other) = next(found for found in map(swappable, files.items()) if found)
    wrong = header.replace(one, b"?").replace(other, one).replace(b"?", other)
    assert len(wrong) == len(header)
    server.faults = [Fault(f"{STORED}{REPO}/{server.add(REPO, files)}/{shard}", change=(0, wrong))]
    with pytest.raises(CorruptFileError, match=f"{shard} begins otherwise than it did"):
        pull_it(tmp_path)
    assert contents(pull_it(tmp_path)) == expected


def swappable(file: tuple[str, bytes]) -> tuple[str, bytes, tuple[bytes, bytes]] | None:
    """The name and header of a shard that holds the gates of two experts, and their names; None for another file."""
    name, content = file
    if not name.endswith(".safetensors"):
        return None
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    gates = sorted(set(re.findall(rb'"model\.layers\.\d\.block_sparse_moe\.experts\.\d\.w1\.weight"', header)))
    return (name, header, (gates[0], gates[1])) if len(gates) > 1 else None


def test_a_pull_that_was_interrupted_goes_on(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    for limit in (300_000, 800_000, 1_400_000, 2_000_000):
        with pytest.raises(Interrupted):
            pull_it(tmp_path, progress=until(limit))
    (entry,) = Store(tmp_path / "store").entries()
    assert (entry.name, entry.state) == ("tiny-moe", "partial")
    assert contents(pull_it(tmp_path)) == expected


def test_what_is_converted_already_is_not_fetched_again(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, by_layer())
    total = pull_cost(find_target(REPO), write_tokenizer=write_tokenizer)

    def progress(phase: str, done: int, total_bytes: int) -> None:
        if phase == FETCH_AND_CONVERT and done > 0.75 * (total.fetch + total.disk):
            raise Interrupted

    with pytest.raises(Interrupted):
        pull_it(tmp_path, progress=progress)
    server.requests.clear()
    pull_it(tmp_path)
    assert server.asked("00001-of-00006") == [], "its header was kept, and all else of it is converted"
    assert server.asked("config.json") == []


def test_a_pull_that_goes_on_keeps_its_commit(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    first = server.add(REPO, files)
    with pytest.raises(Interrupted):
        pull_it(tmp_path, progress=until(900_000))
    changed = files | {"tokenizer.json": b'{"model": {"new": true}}'}
    second = server.add(REPO, changed)
    notes: list[str] = []
    folder = pull_it(tmp_path, note=notes.append)
    assert contents(folder) == expected
    (note,) = notes
    assert first[:12] in note
    assert second[:12] in note
    assert "--force" in note
    again = pull_it(tmp_path, force=True)
    assert (again / "tokenizer.json").read_bytes() == changed["tokenizer.json"]
