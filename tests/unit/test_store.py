"""The store, verification, and pulling: from names to models, and what goes wrong on the way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from engine.base.errors import (
    BusyError,
    CorruptFileError,
    FreetokenError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from engine.files import store
from engine.files.conversion.job import Recipe
from engine.files.ftw.manifest import MANIFEST_NAME, write_manifest
from engine.files.ftw.opening import open_model
from engine.files.ftw.verify import verify
from engine.files.locks import lock_folder
from engine.files.pulling import pull
from engine.files.pulling.catalogue import PackageFile, parse_catalogue, read_catalogue
from engine.files.pulling.package import fetch_package_file
from engine.files.pulling.target import store_name
from engine.files.sources.opening import open_checkpoint
from engine.files.sources.upcycle import Upcycle
from engine.files.store import Store
from tests.unit.catalogue_entry import ENTRY
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder

GOLDEN = Path(__file__).parent / "golden" / "tiny.ftw"


def silent(*numbers: Any) -> None:
    """A progress that says nothing."""


@pytest.fixture
def models(tmp_path: Path) -> Store:
    """A store with two ready models, an unfinished and two broken ones, and things that are none."""
    root = tmp_path / "store"
    for name in ("qwen3-30b", "demo"):
        shutil.copytree(GOLDEN, root / name)
    shutil.copytree(GOLDEN, root / "broken")
    os.truncate(root / "broken" / "experts-0-0.bank", 100)
    (root / "empty").mkdir()
    (root / "later.partial").mkdir()
    (root / "later.partial" / "dense.safetensors").write_bytes(bytes(10_000))
    (root / ".downloads" / "later").mkdir(parents=True)
    (root / ".downloads" / "fetching" / "files").mkdir(parents=True)
    (root / ".downloads" / "fetching" / "files" / "a.safetensors").write_bytes(bytes(40_000))
    shutil.copytree(GOLDEN, root / "future")
    manifest = (root / "future" / "ftw.json").read_text()
    (root / "future" / "ftw.json").write_text(manifest.replace('"version": 2', '"version": 3'))
    (root / "notes.txt").write_text("not a model")
    return Store(root)


# --- store -----------------------------------------------------------------------------------------------------------


def test_an_absent_store_is_empty(tmp_path: Path) -> None:
    assert Store(tmp_path / "absent").entries() == []
    assert Store(tmp_path / "absent").names() == []


def test_entries_are_ready_unfinished_or_broken(models: Store) -> None:
    entries = {entry.name: entry for entry in models.entries()}
    assert {name: entry.state for name, entry in entries.items()} == {
        "broken": store.BROKEN,
        "demo": store.READY,
        "empty": store.BROKEN,
        "fetching": store.PARTIAL,
        "future": store.UNSUPPORTED,
        "later": store.PARTIAL,
        "qwen3-30b": store.READY,
    }
    assert "FTW version 3; this release reads version 2" in entries["future"].problem
    assert entries["fetching"].size >= 40_000
    assert re.search(r"Not complete, [\d.]+ KiB fetched so far: .* freetoken rm fetching", entries["fetching"].problem)
    assert "freetoken rm later" in entries["later"].problem
    assert "experts-0-0.bank is short" in entries["broken"].problem
    assert entries["demo"].format == "q4_0+q8_0"
    apparent = sum(path.stat().st_size for path in GOLDEN.iterdir())
    assert apparent <= entries["demo"].size <= apparent + 4096 * len(list(GOLDEN.iterdir()))
    assert entries["demo"].modified == pytest.approx((models.root / "demo" / "ftw.json").stat().st_mtime, abs=60)
    assert models.names() == ["broken", "demo", "future", "qwen3-30b"]


def test_get_finds_a_model_or_says_what_is_meant(models: Store) -> None:
    assert models.get("demo") == models.root / "demo"
    with pytest.raises(NotFoundError, match=r"Did you mean qwen3-30b\?"):
        models.get("qwen3-30")
    with pytest.raises(NotFoundError, match=r"Did you mean demo\?"):
        models.get("DEMO")
    with pytest.raises(NotFoundError, match="freetoken list"):
        models.get("zzz")
    for name in ("later", "fetching"):
        with pytest.raises(NotFoundError, match="not complete"):
            models.get(name)
    with pytest.raises(NotFoundError, match=r"no ftw\.json"):
        models.get("empty")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../demo", "a/b", ".hidden", "x.partial", "a\0b", "a b", "é", "a" * 101]
)
def test_impossible_names_are_refused_everywhere(models: Store, name: str) -> None:
    for action in (models.get, models.remove, models.destination, models.downloads):
        with pytest.raises(UsageError, match="cannot be the name"):
            action(name)


def test_remove_frees_what_it_says(models: Store) -> None:
    size = next(entry.size for entry in models.entries() if entry.name == "demo")
    assert models.remove("demo") == size
    assert not (models.root / "demo").exists()
    assert models.remove("later") > 0
    assert sorted(path.name for path in models.root.iterdir()) == [
        ".downloads",
        "broken",
        "empty",
        "future",
        "notes.txt",
        "qwen3-30b",
    ]
    models.remove("broken")
    models.remove("empty")
    with pytest.raises(NotFoundError):
        models.remove("demo")


def test_remove_takes_all_that_a_name_has_or_nothing(models: Store) -> None:
    (models.root / "demo.partial").mkdir()
    (models.root / "demo.partial" / "dense.safetensors").write_bytes(bytes(10_000))
    assert [entry.state for entry in models.entries() if entry.name == "demo"] == [store.READY, store.PARTIAL]
    lock = lock_folder(models.root / "demo.partial", "busy")
    with pytest.raises(BusyError, match=r"demo\.partial is being written"):
        models.remove("demo")
    assert models.get("demo").is_dir()
    os.close(lock)
    assert models.remove("demo") > 10_000
    assert not [entry for entry in models.entries() if entry.name == "demo"]
    assert models.remove("fetching") >= 40_000
    assert not (models.root / ".downloads" / "fetching").exists()


def test_files_that_are_called_like_leftovers_are_nobodys(models: Store) -> None:
    strangers = [models.root / "demo.partial", models.root / ".downloads" / "demo", models.root / "zzz.partial"]
    for stranger in strangers:
        stranger.write_text("somebody's notes")
    assert [entry.state for entry in models.entries() if entry.name in ("demo", "zzz")] == [store.READY]
    with pytest.raises(NotFoundError, match="Nothing of 'demo' is unfinished"):
        models.remove("demo", unfinished_only=True)
    with pytest.raises(FreetokenError, match=r"a file has its name.* Move that file away"):
        lock_folder(models.root / "demo.partial", "busy")
    assert models.remove("demo") > 0
    with pytest.raises(NotFoundError, match="There is no model 'demo'"):
        models.remove("demo")
    assert all(stranger.is_file() for stranger in strangers)


def test_what_a_killed_removal_left_goes_with_the_next(models: Store) -> None:
    (models.root / ".gone.removed" / "deep").mkdir(parents=True)
    models.remove("demo")
    assert not (models.root / ".gone.removed").exists()


def test_remove_of_a_link_leaves_what_it_points_to(models: Store, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(GOLDEN, tmp_path / "elsewhere")
    (models.root / "linked").symlink_to(elsewhere)
    assert models.get("linked").is_dir()
    models.remove("linked")
    assert (elsewhere / "ftw.json").exists()
    assert not os.path.lexists(models.root / "linked")


def test_a_link_whose_disk_is_away_is_listed_explained_and_removed(models: Store, tmp_path: Path) -> None:
    (models.root / "away").symlink_to(tmp_path / "unmounted")
    (models.root / "loop").symlink_to("loop")
    problems = {entry.name: entry.problem for entry in models.entries() if entry.state == store.BROKEN}
    for name in ("away", "loop"):
        assert f"freetoken rm {name}" in problems[name]
        with pytest.raises(NotFoundError, match=r"is a link to .*, which cannot be reached"):
            models.get(name)
        models.remove(name)
        assert not os.path.lexists(models.root / name)


def test_remove_waits_for_nobody(models: Store) -> None:
    lock = lock_folder(models.root / "later.partial", "busy")
    with pytest.raises(BusyError, match=r"later\.partial is being written"):
        models.remove("later")
    os.close(lock)
    assert (models.root / "later.partial" / "dense.safetensors").exists()


# --- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "offset", "named"),
    [
        ("experts-0-0.bank", 0, "the record of expert 0 of MoE layer 0"),
        ("experts-0-0.bank", 3 * 4096 - 1, "the record of expert 0 of MoE layer 2"),
        ("experts-0-1.bank", 17, "the record of expert 1 of MoE layer 2"),
        ("experts-1-1.bank", 8191, "the record of expert 1 of MoE layer 1"),
        ("dense.safetensors", 4096, "the tensor embed"),
        ("dense.safetensors", -1, "the tensor odd_bias"),
        ("note.txt", 3, "the file"),
    ],
)
def test_one_flipped_bit_is_found_and_named(
    tmp_path: Path, file: str, offset: int, named: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("engine.files.ftw.verify.Spec.from_json", lambda spec: spec)
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "model"))
    assert verify(folder, silent).problems == ()
    content = bytearray((folder / file).read_bytes())
    content[offset] ^= 16
    (folder / file).write_bytes(content)
    (problem,) = verify(folder, silent).problems
    assert (problem.file, problem.what) == (folder / file, named)
    assert problem.expected in (folder / "ftw.json").read_text()
    assert problem.found == xxhash.xxh3_128_hexdigest(bytes(content[problem.start : problem.stop])) != problem.expected
    assert problem.start <= offset % len(content) < problem.stop
    assert problem.sentence() == (
        f"{folder / file}: {named} (bytes {problem.start} to {problem.stop}) was altered: "
        f"its xxh3-128 should be {problem.expected} and is {problem.found}."
    )


def test_verify_counts_every_byte(monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.files.ftw.verify.Spec.from_json", lambda spec: spec)
    seen: list[tuple[int, int]] = []
    report = verify(GOLDEN, lambda done, total: seen.append((done, total)))
    header = 4096
    weighed = sum(path.stat().st_size for path in GOLDEN.iterdir() if path.name != "ftw.json") - header
    assert seen[-1] == (weighed, weighed)
    assert report.checked_bytes == weighed


def test_a_spec_that_makes_no_sense_does_not_verify() -> None:
    with pytest.raises(CorruptFileError, match="spec"):
        verify(GOLDEN, silent)


# --- pull ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3-30B.Q4_0.gguf", "qwen3-30b.q4_0"),
        ("/x/Some Model (v2)/", "some-model-v2"),
        ("x/..weird..gguf", "weird"),
        ("Größe-7B.gguf", "grosse-7b"),
    ],
)
def test_a_path_gives_a_name_that_the_store_takes(tmp_path: Path, path: str, name: str) -> None:
    assert store_name(Path(path)) == name
    Store(tmp_path).destination(name)


def test_a_local_folder_is_pulled_once(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "My Model", mixtral_tensors())
    models = Store(tmp_path / "store")
    phases: set[str] = set()

    def pull_it(**options: Any) -> Path:
        return pull.pull(
            str(source),
            models,
            write_tokenizer=lambda found, folder: None,
            progress=lambda phase, done, total: phases.add(phase),
            **options,
        ).folder

    assert pull_it() == models.get("my-model")
    assert phases == {pull.CONVERT}
    phases.clear()
    pull_it()
    assert phases == set()
    pull_it(name="other")
    assert models.names() == ["my-model", "other"]


@pytest.mark.parametrize("changed", ["weights", "config"])
def test_a_folder_that_was_trained_further_is_another_model(tmp_path: Path, changed: str) -> None:
    """Names and sizes are those of the folder that was converted before."""
    source = write_folder(tmp_path / "tiny", mixtral_tensors())
    models = Store(tmp_path / "store")
    folder = pull.pull(str(source), models, write_tokenizer=silent, progress=silent).folder
    before = [path.stat().st_size for path in source.glob("*.safetensors")]
    config = MIXTRAL if changed == "weights" else MIXTRAL | {"rope_theta": 12345.0}
    scale = 2.0 if changed == "weights" else 1.0
    shutil.rmtree(source)
    write_folder(source, {name: values * scale for name, values in mixtral_tensors().items()}, config)
    assert [path.stat().st_size for path in source.glob("*.safetensors")] == before
    with pytest.raises(UsageError, match="made of other files"):
        pull.is_there(folder, source)


def test_a_model_without_samples_is_known_by_names_and_sizes(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny", mixtral_tensors())
    folder = pull.pull(str(source), Store(tmp_path / "store"), write_tokenizer=silent, progress=silent).folder
    manifest = open_model(folder).manifest
    files = [{key: file[key] for key in ("file", "bytes")} for file in manifest.provenance["source_files"]]
    for listed, there in ((files, True), ([{**files[0], "bytes": 1}], False), ([], False), (None, False)):
        provenance = {"source": "tiny", "source_files": listed}
        (folder / MANIFEST_NAME).write_bytes(write_manifest(replace(manifest, provenance=provenance)))
        if there:
            assert pull.is_there(folder, source)
        else:
            with pytest.raises(UsageError, match="made of other files"):
                pull.is_there(folder, source)


def test_a_model_of_another_release_is_not_taken_for_one_that_runs(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny", mixtral_tensors())
    models = Store(tmp_path / "store")
    folder = pull.pull(str(source), models, write_tokenizer=silent, progress=silent).folder
    assert pull.is_there(folder, source)
    manifest = open_model(folder).manifest
    newer = replace(manifest, spec={**manifest.spec, "quantum": 1})
    (folder / MANIFEST_NAME).write_bytes(write_manifest(newer))
    with pytest.raises(UnsupportedError, match="quantum") as caught:
        pull.is_there(folder, source)
    assert "--force" in caught.value.remedy


def test_a_catalogue_model_is_fetched_and_converted(tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[Any] = []
    file = PackageFile("tiny-package", "1.0", "tiny_package/tiny.gguf", 100, "0" * 64)
    catalogue = {"tiny": replace(parse_catalogue(ENTRY, "x")["tiny"], source=file)}
    monkeypatch.setattr("engine.files.pulling.target.read_catalogue", lambda: catalogue)
    monkeypatch.setattr(
        "engine.files.pulling.pull.fetch_package_file", lambda source, folder, progress: folder / "file"
    )
    monkeypatch.setattr("engine.files.pulling.pull.convert", lambda *paths, **options: asked.append((paths, options)))
    models = Store(tmp_path)
    pull.pull("tiny", models, write_tokenizer=silent, progress=silent)
    (paths, options) = asked[0]
    assert paths == (models.downloads("tiny") / "file", models.destination("tiny"))
    assert options["recipe"] == Recipe(Upcycle(4, 1), None, {"temperature": 0.7, "top_k": 5})
    with pytest.raises(NotFoundError, match="Did you mean tiny"):
        pull.pull("tinny", models, write_tokenizer=silent, progress=silent)


def test_the_demo_is_what_the_catalogue_says() -> None:
    """Numbers of models.toml against the real file, where its package is installed."""
    demo = read_catalogue()["demo"]
    try:
        path = Path(str(metadata.distribution(demo.source.package).locate_file(demo.source.file)))
    except metadata.PackageNotFoundError:
        pytest.skip(f"{demo.source.package} is not installed")
    assert fetch_package_file(demo.source, Path("/nonexistent"), silent) == path
    dense = open_checkpoint(path).tensors
    counts = {name: int(np.prod(tensor.shape)) for name, tensor in dense.items()}
    mlp = sum(count for name, count in counts.items() if ".mlp." in name)
    routers = 30 * 8 * 576
    assert demo.parameters == sum(counts.values()) + 7 * mlp + routers
    assert demo.active_parameters == sum(counts.values()) + mlp + routers


def test_listing_reads_no_numpy_and_no_weights() -> None:
    code = "import sys; import engine.files.store; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
