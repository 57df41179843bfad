"""Whatever interrupts a conversion, it goes on and gives the same bytes; two never mix."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine.base.errors import (
    BusyError,
    CorruptFileError,
    FreetokenError,
    UnsupportedError,
    UsageError,
)
from engine.base.progress import silent
from engine.files.ftw import open_model
from engine.files.job import Recipe
from engine.files.locks import lock_folder
from engine.files.space import require_space
from engine.files.store import UNSUPPORTED, Store
from engine.files.verify import verify
from tests.unit.checkpoints import mixtral_tensors, write_folder, write_mixtral_gguf
from tests.unit.converting import InterruptAt, Interrupted, contents, resumed_at, run, write_tokenizer


def interrupt(source: Path, dest: Path, limit: int, **options: Any) -> int:
    """Converts until byte `limit` is written; returns where it began."""
    progress = InterruptAt(limit)
    with pytest.raises(Interrupted):
        run(source, dest, progress=progress, **options)
    assert not dest.exists()
    return progress.first


def test_an_interrupted_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    dest = tmp_path / "dest"
    starts = [interrupt(source, dest, total * part // 13) for part in range(1, 12)]
    assert starts == sorted(starts)
    assert starts[-1] > total // 2  # it did not begin again
    assert resumed_at(source, dest) > starts[-1]
    assert contents(dest) == contents(tmp_path / "whole")
    assert not dest.with_name("dest.partial").exists()


def test_an_interruption_while_the_tokenizer_is_written_costs_nothing(tmp_path: Path, tensors: dict) -> None:
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)

    def stop(metadata: Mapping[str, Any], folder: Path) -> None:
        write_tokenizer({"tokenizer.ggml.tokens": ["something else"]}, folder)
        raise Interrupted

    with pytest.raises(Interrupted):
        run(source, tmp_path / "dest", write_tokenizer=stop)
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    assert resumed_at(source, tmp_path / "dest") == total
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("survivors", [0, 1])
def test_an_interruption_at_the_last_renames_costs_nothing(
    tmp_path: Path, source: Path, monkeypatch: Any, survivors: int
) -> None:
    run(write_folder(tmp_path / "other", mixtral_tensors(seed=1)), tmp_path / "dest")
    real_rename = Path.rename
    done = []

    def rename(self: Path, target: Path) -> Path:
        if len(done) == survivors:
            raise Interrupted
        done.append(target)
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(Interrupted):
        run(source, tmp_path / "dest", force=True)
    monkeypatch.undo()
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    assert resumed_at(source, tmp_path / "dest", force=True) == total
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "other", "source", "whole"]


def test_a_journal_that_was_cut_in_mid_line_is_used_up_to_there(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 150_000)
    journal = tmp_path / "dest.partial" / "journal"
    size = journal.stat().st_size
    os.truncate(journal, size - 10)
    run(source, tmp_path / "dest")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("content", ["", "{", "\n\n"])
def test_a_journal_without_a_beginning_starts_again(tmp_path: Path, source: Path, content: str) -> None:
    partial = tmp_path / "dest.partial"
    partial.mkdir()
    (partial / "journal").write_text(content)
    (partial / "experts-0-0.bank").write_bytes(b"left over" * 100_000)
    (partial / "stray").write_text("left over")
    if content == "\n\n":
        with pytest.raises(UsageError, match="another source"):
            run(source, tmp_path / "dest")
    run(source, tmp_path / "dest", force=True)
    run(source, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_a_partial_whose_bytes_are_not_the_journals_is_refused(tmp_path: Path, source: Path) -> None:
    interrupt(source, tmp_path / "dest", 300_000)
    bank = tmp_path / "dest.partial" / "experts-0-0.bank"
    os.truncate(bank, 4096)
    with pytest.raises(CorruptFileError, match=r"dest\.partial are not what its journal says"):
        run(source, tmp_path / "dest")


@pytest.mark.parametrize("tail", [b"\xff\xfe\n", b"\x00" * 40 + b"\n", b"0123456789abcdef" * 2 + b"\n"])
def test_a_journal_that_claims_too_much_is_refused_with_a_way_out(tmp_path: Path, source: Path, tail: bytes) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    with (tmp_path / "dest.partial" / "journal").open("ab") as journal:
        journal.write(tail)
    with pytest.raises(CorruptFileError, match="not what its journal says") as caught:
        run(source, tmp_path / "dest")
    assert "Remove it" in caught.value.remedy


def test_bytes_after_the_last_whole_line_of_a_journal_are_dropped(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 150_000)
    with (tmp_path / "dest.partial" / "journal").open("ab") as journal:
        journal.write(b"\xff\x00")
    run(source, tmp_path / "dest")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_another_source_or_setting_is_not_mixed_in(tmp_path: Path, source: Path, tensors: dict) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    kept = contents(tmp_path / "dest.partial")
    other = write_folder(tmp_path / "other", mixtral_tensors(seed=1))
    with pytest.raises(UsageError, match="another source or with other settings") as caught:
        run(other, tmp_path / "dest")
    assert "--force" in str(caught.value)
    with pytest.raises(UsageError, match="another source or with other settings"):
        run(source, tmp_path / "dest", recipe=Recipe(sampling={"temperature": 0.5}))
    assert contents(tmp_path / "dest.partial") == kept
    run(other, tmp_path / "dest", force=True)
    run(other, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize(("name", "value"), [("tool", "0.0.1"), ("journal", 1)])
def test_what_another_version_began_is_not_gone_on_with(tmp_path: Path, source: Path, name: str, value: object) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    journal = tmp_path / "dest.partial" / "journal"
    head, *lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([json.dumps(json.loads(head) | {name: value}, sort_keys=True) + "\n", *lines]))
    with pytest.raises(UsageError, match=r"dest\.partial holds an unfinished conversion by another version") as caught:
        run(source, tmp_path / "dest")
    assert "--force" in caught.value.remedy
    run(source, tmp_path / "dest", force=True)


def test_a_model_of_another_version_says_so_wherever_it_is_opened(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "store")
    run(source, store.destination("m"))
    manifest = store.destination("m") / "ftw.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 7'))
    said = r"ftw\.json is of FTW version 7; this release reads version 1"
    for use in (open_model, lambda folder: verify(folder, silent)):
        with pytest.raises(UnsupportedError, match=said) as caught:
            use(store.destination("m"))
        assert caught.value.remedy
    (entry,) = store.entries()
    assert entry.state == UNSUPPORTED
    assert re.search(said, entry.problem)
    with pytest.raises(UsageError, match="is there already"):
        run(source, store.destination("m"))
    run(source, store.destination("m"), force=True)


def test_force_goes_on_with_its_own_unfinished_work(tmp_path: Path, source: Path) -> None:
    interrupt(source, tmp_path / "dest", 200_000, force=True)
    assert resumed_at(source, tmp_path / "dest", force=True) > 100_000


def test_a_second_conversion_of_the_same_model_is_told_to_wait(tmp_path: Path, source: Path) -> None:
    lock = lock_folder(tmp_path / "dest.partial", "busy")
    with pytest.raises(BusyError, match=r"dest\.partial"):
        run(source, tmp_path / "dest")
    os.close(lock)
    run(source, tmp_path / "dest")


def test_a_conversion_that_was_overtaken_says_so_at_once(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    real_space = require_space

    def be_overtaken(path: Path, needed: int) -> None:
        monkeypatch.setattr("engine.files.convert.require_space", real_space)
        run(source, tmp_path / "dest")

    monkeypatch.setattr("engine.files.convert.require_space", be_overtaken)
    with pytest.raises(UsageError, match="is there already"):
        run(source, tmp_path / "dest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source"]


def test_the_lock_is_not_fooled_by_a_folder_that_was_renamed_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    real_open = os.open
    renamed = []

    def open_and_rename(path: Any, *rest: Any, **options: Any) -> int:
        descriptor = real_open(path, *rest, **options)
        if not renamed:
            renamed.append(Path(path).rename(tmp_path / "finished"))
        return descriptor

    monkeypatch.setattr(os, "open", open_and_rename)
    descriptor = lock_folder(tmp_path / "dest.partial", "busy")
    assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "dest.partial"))
    os.close(descriptor)


def test_what_is_there_already_is_kept_unless_forced(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "dest")
    before = contents(tmp_path / "dest")
    with pytest.raises(UsageError, match="is there already"):
        run(source, tmp_path / "dest")
    other = write_folder(tmp_path / "other", mixtral_tensors(seed=1))
    opened = open_model(tmp_path / "dest")
    run(other, tmp_path / "dest", force=True)
    assert contents(tmp_path / "dest") != before
    assert bytes(opened.banks[0].record(0)) == before["experts-0-0.bank"][: opened.banks[0].record_bytes]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "other", "source"]


def test_force_never_removes_what_is_no_model(tmp_path: Path, source: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "important.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("letters", "file"):
        with pytest.raises(UsageError, match="no converted model"):
            run(source, tmp_path / name, force=True)
    assert (tmp_path / "letters" / "important.txt").read_text() == "dear"


def test_a_destination_below_a_file_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(FreetokenError, match=r"file/dest\.partial cannot be made"):
        run(source, tmp_path / "file" / "dest")


def test_the_source_is_never_touched(tmp_path: Path, source: Path) -> None:
    for path in source.iterdir():
        path.chmod(0o444)
    source.chmod(0o555)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()}
    run(source, tmp_path / "dest")
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()} == before
