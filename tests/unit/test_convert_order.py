"""A source is used file by file: each comes before it is read, and goes when all that it holds is safe."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.base.errors import NetworkError
from engine.files.conversion.convert import convert_job
from engine.files.conversion.job import plan_job
from engine.files.conversion.partial import Partial
from tests.unit.checkpoints import MIXTRAL
from tests.unit.converting import EAGER, InterruptAt, Interrupted, contents, run, write_tokenizer
from tests.unit.fleeting import fleeting


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], home: Mapping[str, str], last: str) -> Path:
    """A folder whose tensors lie in the shard that the first matching part of their name says, else in `last`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MIXTRAL))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    index = {name: next((home[part] for part in home if part in name), last) + ".safetensors" for name in tensors}
    for shard in set(index.values()):
        save_file({name: tensors[name] for name, file in index.items() if file == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.fixture
def spread(tmp_path: Path, tensors: dict) -> Path:
    """Shards a to e: each layer's down projections lie apart from the rest of its experts, and nobody wants shard c."""
    home = {
        "layers.0.block_sparse_moe.experts.0.w2": "d", "layers.0.block_sparse_moe.experts": "a",
        "layers.1.block_sparse_moe.experts.3.w2": "d", "layers.1.block_sparse_moe.experts": "b", "vision": "c",
    }  # fmt: skip
    unwanted = {"vision_tower.weight": np.ones((4, 4), np.float32)}
    return write_shards(tmp_path / "spread", tensors | unwanted, home, "e")


def convert_fleeting(source: Path, dest: Path, failing: str = "", **options: Any) -> list[str]:
    """Converts; returns what happened to the files, and checks that none is left."""
    events: list[str] = []
    here = dest.with_name("here")
    with fleeting(source, here, events, failing) as checkpoint:
        convert_job(plan_job(checkpoint), dest, **{"write_tokenizer": write_tokenizer, "pace": EAGER} | options)
    assert not list(here.iterdir())
    return events


def test_files_come_in_their_order_and_go_when_they_are_used_up(tmp_path: Path, spread: Path) -> None:
    events = convert_fleeting(spread, tmp_path / "dest")
    assert events == ["-c", "+a", "+b", "+d", "-a", "-b", "-d", "+e", "-e"]
    run(spread, tmp_path / "whole")
    for name, content in contents(tmp_path / "whole").items():
        assert (tmp_path / "dest" / name).read_bytes() == content


def test_a_file_goes_as_soon_as_the_last_tensor_in_it_is_written(tmp_path: Path, tensors: dict) -> None:
    home = {"layers.0.": "a", "layers.1.": "b"}
    source = write_shards(tmp_path / "source", tensors, home, "c")
    assert convert_fleeting(source, tmp_path / "dest") == ["+a", "-a", "+b", "-b", "+c", "-c"]


def test_what_a_file_gave_is_in_the_journal_before_it_goes(tmp_path: Path, spread: Path, monkeypatch: Any) -> None:
    journal = []
    real_record = Partial.record

    def record(self: Partial, lines: list[str], drop_cache: bool) -> None:
        real_record(self, lines, drop_cache)
        journal.append(f"{len(self.lines)} items")

    monkeypatch.setattr(Partial, "record", record)
    with fleeting(spread, tmp_path / "here", journal) as checkpoint:
        convert_job(plan_job(checkpoint), tmp_path / "dest", write_tokenizer=write_tokenizer)
    assert journal == ["-c", "+a", "3 items", "+b", "6 items", "+d", "7 items", "-a", "8 items", "-b", "-d", "+e",
                       "25 items", "-e"]  # fmt: skip


def test_stopped_anywhere_it_asks_again_only_for_files_that_it_still_needs(tmp_path: Path, spread: Path) -> None:
    run(spread, tmp_path / "whole")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    total = sizes["dense.safetensors"] + sizes["experts-0-0.bank"]
    numbers = random.Random(3)
    for attempt in range(12):
        dest = tmp_path / f"dest{attempt}"
        limits = sorted(numbers.randrange(total) for _ in range(numbers.randrange(1, 4)))
        gone: set[str] = set()
        for limit in limits:
            events: list[str] = []
            with pytest.raises(Interrupted), fleeting(spread, tmp_path / "here", events) as checkpoint:
                convert_job(
                    plan_job(checkpoint), dest, write_tokenizer=write_tokenizer, pace=EAGER, progress=InterruptAt(limit)
                )
            assert not gone.intersection(event[1:] for event in events if event[0] == "+")
            gone |= {event[1:] for event in events if event[0] == "-"}
            for path in (tmp_path / "here").iterdir():
                path.unlink()
        events = convert_fleeting(spread, dest)
        assert not gone.intersection(event[1:] for event in events if event[0] == "+")
        assert gone.issubset(event[1:] for event in events)  # a copy that a kill left is given up
        found = contents(dest)
        expected = contents(tmp_path / "whole")
        assert {name: found[name] for name in sizes} == expected


def test_a_file_that_does_not_come_loses_nothing_that_was_done(tmp_path: Path, spread: Path) -> None:
    with (
        pytest.raises(NetworkError, match=r"d\.safetensors cannot be fetched"),
        fleeting(spread, tmp_path / "here", [], failing="d") as checkpoint,
    ):
        convert_job(plan_job(checkpoint), tmp_path / "dest", write_tokenizer=write_tokenizer)
    journal = (tmp_path / "dest.partial" / "journal").read_text().splitlines()
    assert len(journal) == 1 + 6  # three experts of each layer
    for path in (tmp_path / "here").iterdir():
        path.unlink()
    assert convert_fleeting(spread, tmp_path / "dest") == ["-c", "+a", "+d", "-a", "+b", "-b", "-d", "+e", "-e"]
