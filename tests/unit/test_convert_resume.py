"""Whatever interrupts a conversion, it goes on and gives the same bytes; two never mix."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
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
from engine.files.conversion.fingerprint import fingerprint
from engine.files.conversion.job import Recipe, plan_job
from engine.files.ftw.opening import open_model
from engine.files.ftw.verify import verify
from engine.files.locks import lock_folder
from engine.files.sources.opening import open_checkpoint
from engine.files.space import require_space
from engine.files.store import UNSUPPORTED, Store
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder, write_mixtral_gguf
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


def test_a_tokenizer_that_cannot_be_had_is_told_before_any_weights_are_read(tmp_path: Path, tensors: dict) -> None:
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)
    seen: list[int] = []

    def refuse(metadata: Mapping[str, Any], folder: Path) -> None:
        raise UnsupportedError("The GGUF file's pre-tokenizer is not known.", "Take another.")

    with pytest.raises(UnsupportedError, match="pre-tokenizer"):
        run(source, tmp_path / "dest", write_tokenizer=refuse, progress=lambda done, total: seen.append(done))
    assert seen == []
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_an_interruption_while_the_tokenizer_is_written_costs_nothing(tmp_path: Path, tensors: dict) -> None:
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)

    def stop(metadata: Mapping[str, Any], folder: Path) -> None:
        write_tokenizer({"tokenizer.ggml.tokens": ["something else"]}, folder)
        raise Interrupted

    interrupt(source, tmp_path / "dest", 60_000)
    with pytest.raises(Interrupted):
        run(source, tmp_path / "dest", write_tokenizer=stop)
    run(source, tmp_path / "whole")
    assert resumed_at(source, tmp_path / "dest") > 40_000
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_a_journal_that_was_cut_in_mid_line_is_used_up_to_there(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 150_000)
    journal = tmp_path / "dest.partial" / "journal"
    size = journal.stat().st_size
    os.truncate(journal, size - 10)
    run(source, tmp_path / "dest")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("content", [b"", b"{", b'{"journal": 3, "tool', bytes(200)])
def test_a_journal_without_a_beginning_starts_again(tmp_path: Path, source: Path, content: bytes) -> None:
    partial = tmp_path / "dest.partial"
    partial.mkdir()
    (partial / "journal").write_bytes(content)
    (partial / "experts-0-0.bank").write_bytes(b"left over" * 100_000)
    (partial / "tokenizer.json").write_text("left over")
    run(source, tmp_path / "dest")
    run(source, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


NOT_OURS: dict[str, dict[str, bytes]] = {
    "a folder of letters": {"letter.txt": b"dear"},
    "names of ours without a journal": {"config.json": b"{}", "experts-0-0.bank": b"dear"},
    "another's journal": {"journal": b"Monday\nTuesday\n"},
    "another's journal of one line": {"journal": b"Monday"},
    "an empty journal and a letter": {"journal": b"", "letter.txt": b"dear"},
    "half a head and a letter": {"journal": b'{"journal": 3, "to', "letter.txt": b"dear"},
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("case", NOT_OURS)
def test_a_folder_that_only_has_the_name_of_an_unfinished_one_is_left_alone(
    tmp_path: Path, source: Path, case: str, force: bool
) -> None:
    partial = tmp_path / "dest.partial"
    partial.mkdir()
    for name, content in NOT_OURS[case].items():
        (partial / name).write_bytes(content)
    with pytest.raises(
        UsageError, match=r"dest\.partial is where a conversion .* which no conversion has left"
    ) as caught:
        run(source, tmp_path / "dest", force=force)
    assert caught.value.remedy
    assert contents(partial) == NOT_OURS[case]
    assert not (tmp_path / "dest").exists()


def test_folders_in_a_folder_that_is_not_ours_are_left_alone(tmp_path: Path, source: Path) -> None:
    (tmp_path / "dest.partial" / "journal").mkdir(parents=True)
    (tmp_path / "dest.partial" / "journal" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="'journal', which no conversion has left"):
        run(source, tmp_path / "dest", force=True)
    assert (tmp_path / "dest.partial" / "journal" / "letter.txt").read_text() == "dear"


def test_an_empty_folder_of_that_name_is_used(tmp_path: Path, source: Path) -> None:
    (tmp_path / "dest.partial").mkdir()
    run(source, tmp_path / "dest")


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
    journal.write_text("".join([json.dumps(json.loads(head) | {name: value}) + "\n", *lines]))
    with pytest.raises(UsageError, match=r"dest\.partial holds an unfinished conversion by another version") as caught:
        run(source, tmp_path / "dest")
    assert "--force" in caught.value.remedy
    run(source, tmp_path / "dest", force=True)


def test_a_model_of_another_version_says_so_wherever_it_is_opened(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "store")
    run(source, store.destination("m"))
    manifest = store.destination("m") / "ftw.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 7'))
    said = r"ftw\.json is of FTW version 7; this release reads version 2"
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


CHANGED_CONFIGS: dict[str, dict[str, Any]] = {
    "how quantised tensors are read": {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}},
    "what only the copy tells": {"transformers_version": "9.9"},
}


@pytest.mark.parametrize("case", CHANGED_CONFIGS)
def test_another_config_with_the_same_weights_is_not_mixed_in(tmp_path: Path, source: Path, case: str) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    (source / "config.json").write_text(json.dumps(MIXTRAL | CHANGED_CONFIGS[case]))
    with pytest.raises(UsageError, match="another source or with other settings"):
        run(source, tmp_path / "dest")
    assert resumed_at(source, tmp_path / "dest", force=True) < 10_000


def test_the_same_bytes_read_as_another_form_are_another_conversion(source: Path) -> None:
    checkpoint = open_checkpoint(source)
    name = "model.layers.0.self_attn.q_proj.weight"
    other = replace(checkpoint, tensors={**checkpoint.tensors, name: replace(checkpoint.tensors[name], form="bf16")})
    first, second = (fingerprint(plan_job(one)) for one in (checkpoint, other))
    checkpoint.close()
    assert {key for key in first if first[key] != second[key]} == {"plan"}


def test_force_starts_over_and_goes_on_with_what_it_began_itself(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 200_000)
    assert interrupt(source, tmp_path / "dest", 200_000, force=True) < 10_000
    assert interrupt(source, tmp_path / "dest", 300_000, force=True) > 100_000
    assert resumed_at(source, tmp_path / "dest") > 200_000  # nothing is in its way, so no force is needed
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_force_gets_past_a_partial_that_was_altered(tmp_path: Path, source: Path) -> None:
    interrupt(source, tmp_path / "dest", 300_000)
    os.truncate(tmp_path / "dest.partial" / "experts-0-0.bank", 4096)
    run(source, tmp_path / "dest", force=True)
    assert verify(tmp_path / "dest", silent).problems == ()


def test_names_that_others_leave_in_the_folder_do_not_enter_the_model(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 150_000)
    partial = tmp_path / "dest.partial"
    (partial / ".directory").write_text("an icon")
    (partial / ".nfs0001").write_text("deleted")
    (partial / "notes").mkdir()
    model = run(source, tmp_path / "dest")
    assert model.manifest == open_model(tmp_path / "whole").manifest


def test_a_folder_that_is_renamed_while_room_is_looked_for(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    real_lstat, gone = os.lstat, tmp_path / "gone"

    def rename_first(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("journal") and not gone.exists():
            (tmp_path / "dest.partial").rename(gone)
        return real_lstat(path, **options)

    monkeypatch.setattr("engine.files.space.os.lstat", rename_first)
    run(source, tmp_path / "dest")


def test_a_second_conversion_of_the_same_model_is_told_to_wait(tmp_path: Path, source: Path) -> None:
    lock = lock_folder(tmp_path / "dest.partial", "busy")
    with pytest.raises(BusyError, match=r"dest\.partial"):
        run(source, tmp_path / "dest")
    os.close(lock)
    run(source, tmp_path / "dest")


def test_a_conversion_that_was_overtaken_says_so_at_once(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    real_space = require_space

    def be_overtaken(path: Path, needed: int) -> None:
        monkeypatch.setattr("engine.files.conversion.convert.require_space", real_space)
        run(source, tmp_path / "dest")

    monkeypatch.setattr("engine.files.conversion.convert.require_space", be_overtaken)
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
