"""Pulling a repository: the same model as its folder on disk gives, whatever happens on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine.base.errors import (
    BusyError,
    CorruptFileError,
    DoesNotFitError,
    UnsupportedError,
    UsageError,
)
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from engine.files.hub.address import HubRepo
from engine.files.hub.repo import Repo, is_made_of, open_repo
from engine.files.pulling.cost import Cost
from engine.files.pulling.pull import pull_cost
from engine.files.pulling.repository import FETCH, FETCH_AND_CONVERT
from engine.files.pulling.target import find_target
from engine.files.store import Store
from tests.hub.pulling import REPO, Interrupted, by_layer, bytes_below, contents, interrupt, pull_it, until
from tests.hub.server import HubServer
from tests.unit.checkpoints import mixtral_tensors, write_mixtral_gguf
from tests.unit.converting import write_tokenizer

STORED = "/storage/"


def test_a_pull_gives_the_model_that_the_folder_gives(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    commit = server.add(REPO, files)
    folder = pull_it(tmp_path)
    assert contents(folder) == expected
    assert open_model(folder).manifest.provenance["source"] == f"{REPO}@{commit}"
    assert [path.name for path in (tmp_path / "store").rglob("*") if "unfinished" in path.name] == []
    assert not Store(tmp_path / "store").downloads("tiny-moe").exists()
    assert server.asked("README.md") == []
    assert not (tmp_path / "cache").exists(), "the cache of huggingface_hub is not ours to write"
    asked = len(server.requests)
    assert pull_it(tmp_path) == folder
    assert len(server.requests) == asked, "what is there is not asked for"


def test_progress_counts_what_comes_and_what_is_written(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    told: list[tuple[str, int, int]] = []
    costs: list[Cost] = []
    folder = pull_it(tmp_path, progress=lambda *step: told.append(step), announce=costs.append)
    (cost,) = costs
    assert cost.fetch == sum(len(content) for name, content in files.items() if name.endswith(".safetensors"))
    assert cost.disk == sum(path.stat().st_size for path in folder.glob("*.bank")) + (
        (folder / "dense.safetensors").stat().st_size
    )
    assert told[0] == (FETCH, 0, 0)
    assert {phase for phase, _, _ in told[1:]} == {FETCH_AND_CONVERT}
    assert {total for _, _, total in told[1:]} == {cost.fetch + cost.disk}
    done = [done for _, done, _ in told[1:]]
    assert done == sorted(done)
    assert done[-1] == cost.fetch + cost.disk


def test_files_are_given_up_as_soon_as_they_are_converted(server: HubServer, tmp_path: Path) -> None:
    """Of eight shards of a layer each never more than the one in use, two ahead, and the beginnings of all."""
    server.add(REPO, by_layer(8))
    weights = [len(content) for content in server.repos[REPO][server.refs[REPO]["main"]].values()]
    downloads = Store(tmp_path / "store").downloads("tiny-moe") / "files"
    most = 0

    def progress(phase: str, done: int, total: int) -> None:
        nonlocal most
        most = max(most, bytes_below(downloads))

    costs: list[Cost] = []
    pull_it(tmp_path, progress=progress, announce=costs.append)
    assert 2 * max(weights) < most < 3 * max(weights) + 70_000 * len(weights) < sum(weights) / 2
    assert costs[0].room <= costs[0].disk + max(weights) + (64 << 20)


def test_the_order_of_shards_and_the_room_they_take(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, by_layer())
    cost = pull_cost(find_target(REPO), write_tokenizer=write_tokenizer)
    largest = max(len(content) for content in server.repos[REPO][server.refs[REPO]["main"]].values())
    assert cost.disk < cost.room <= cost.disk + 2 * largest + (64 << 20)
    assert cost.fetch > cost.disk * 0.9


def test_a_revision_can_be_asked_for(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    old = server.add(REPO, files | {"generation_config.json": b'{"temperature": 1.5}'}, "v1")
    server.add(REPO, files)
    folder = pull_it(tmp_path, revision="v1")
    assert json.loads((folder / "generation_config.json").read_bytes()) == {"temperature": 1.5}
    assert pull_it(tmp_path, revision=old) == folder
    assert pull_it(tmp_path, revision="v1") == folder
    server.add(REPO, files, "v2")
    with pytest.raises(UsageError, match="made of other files than someone/Tiny-MoE at v2"):
        pull_it(tmp_path, revision="v2")


def test_a_model_of_another_owner_is_not_taken_for_this_one(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    server.add("else/Tiny-MoE", files)
    pull_it(tmp_path)
    with pytest.raises(UsageError, match="made of other files than else/Tiny-MoE"):
        pull_it(tmp_path, "else/Tiny-MoE")
    assert pull_it(tmp_path, "else/Tiny-MoE", name="other").name == "other"


def test_two_pulls_at_once(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, files)
    messages: list[str] = []

    def second(cost: Cost) -> None:
        with pytest.raises(BusyError, match="Another process is downloading") as caught:
            pull_it(tmp_path)
        messages.append(caught.value.message)

    pull_it(tmp_path, announce=second)
    assert len(messages) == 1


def test_a_family_that_is_not_known_is_refused_by_its_config(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, files | {"config.json": b'{"model_type": "perceiver"}'})
    with pytest.raises(UnsupportedError, match="perceiver"):
        pull_it(tmp_path)
    assert {request.path.rsplit("/", 1)[-1] for request in server.requests} == {"main", "config.json"}
    assert not Store(tmp_path / "store").downloads("tiny-moe").exists()
    assert Store(tmp_path / "store").entries() == []


def test_a_shard_that_the_index_names_and_nobody_uploaded(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    without = {name: content for name, content in files.items() if "00004" not in name}
    server.add(REPO, without)
    with pytest.raises(Exception, match=r"someone/Tiny-MoE/model-00004-of-00005\.safetensors is missing"):
        pull_it(tmp_path)


def test_a_disk_without_room_is_told_before_the_first_weights(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(REPO, files)
    monkeypatch.setattr("engine.files.pulling.repository.free_space", lambda path: (path, 10_000_000))
    with pytest.raises(DoesNotFitError, match=r"tiny-moe needs .* of disk while it is pulled, .* too little") as caught:
        pull_it(tmp_path)
    assert caught.value.exit_code == 4
    assert all(request.range.startswith("bytes=0-") for request in server.asked(STORED) if "model-" in request.path)


def test_a_pull_that_ends_with_its_cost_leaves_nothing(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(REPO, files)
    downloads = Store(tmp_path / "store").downloads("tiny-moe")
    with pytest.raises(Interrupted):
        pull_it(tmp_path, announce=interrupt)
    assert not downloads.exists()
    with monkeypatch.context() as patch:
        patch.setattr("engine.files.pulling.repository.free_space", lambda path: (path, 10_000_000))
        with pytest.raises(DoesNotFitError):
            pull_it(tmp_path)
    assert not downloads.exists()
    with pytest.raises(Interrupted):
        pull_it(tmp_path, progress=until(900_000))
    begun = bytes_below(downloads)
    with pytest.raises(Interrupted):
        pull_it(tmp_path, announce=interrupt)
    assert bytes_below(downloads) == begun > 0, "what an earlier pull fetched is kept"


def test_a_folder_that_is_no_model_is_not_replaced(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, files)
    (tmp_path / "store" / "tiny-moe").mkdir(parents=True)
    with pytest.raises(UsageError, match="is no converted model"):
        pull_it(tmp_path, force=True)
    assert server.requests == []


def test_what_a_killed_cleaning_up_left_is_removed(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, files)
    pull_it(tmp_path)
    downloads = Store(tmp_path / "store").downloads("tiny-moe")
    (downloads / "files").mkdir(parents=True)
    pull_it(tmp_path)
    assert not downloads.exists()


# --- what is imported ------------------------------------------------------------------------------------------------


def test_huggingface_hub_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys; import engine.files.pulling.pull; import freetoken_cli.pulling; "
        "sys.exit(any(name in sys.modules for name in ('huggingface_hub', 'httpx', 'httpx2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_open_repository_gives_nothing_away_when_it_is_closed(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    repo = open_repo(HubRepo(REPO), tmp_path / "downloads", lambda sentence: None)
    repo.close()
    again = open_repo(HubRepo(REPO), tmp_path / "downloads", lambda sentence: None)
    assert again.fetched == repo.fetched > 0
    again.discard_downloads()
    again.close()
    assert not (tmp_path / "downloads").exists()


def test_a_gguf_of_a_repository(server: HubServer, tmp_path: Path) -> None:
    kinds = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "F16": gguf.GGMLQuantizationType.F16}
    content = {}
    for label, kind in kinds.items():
        path = write_mixtral_gguf(tmp_path / f"Tiny-{label}.gguf", mixtral_tensors(), kind)
        content[path.name] = path.read_bytes()
    server.add("someone/Tiny-GGUF", content)
    with pytest.raises(UsageError, match=r"holds 2 models: Tiny-F16\.gguf \(.*\), Tiny-Q8_0\.gguf"):
        pull_it(tmp_path, "someone/Tiny-GGUF")
    folder = pull_it(tmp_path, "someone/Tiny-GGUF", file="Tiny-Q8_0.gguf")
    assert folder.name == "tiny-q8_0"
    convert(tmp_path / "Tiny-Q8_0.gguf", tmp_path / "local", write_tokenizer=lambda metadata, folder: None)
    assert contents(folder) == contents(tmp_path / "local")
    assert pull_it(tmp_path, "someone/Tiny-GGUF", file="F16").name == "tiny-gguf.f16"


@pytest.mark.parametrize(
    ("made_of", "file", "same"),
    [
        ("a/b@1", None, True),
        ("a/b", None, True),
        ("a/bc@1", None, False),
        ("a/b/T-Q8_0.gguf@1", None, True),
        ("a/b/T-Q8_0.gguf@1", "T-Q8_0.gguf", True),
        ("a/b/T-Q8_0.gguf@1", "q8_0", True),
        ("a/b/T-Q8_0.gguf@1", "Q4_0", False),
        ("a/b/BF16/T-BF16@1", "BF16/T-BF16-00001-of-00003.gguf", True),
        ("a/b/BF16/T-BF16@1", "T-BF16-00002-of-00003.gguf", True),
        ("a/b@1", "Q4_0", False),
        ("demo", None, False),
    ],
)
def test_the_origin_of_a_model_is_compared_with_what_is_asked_for(made_of: str, file: str | None, same: bool) -> None:
    assert is_made_of(HubRepo("a/b", "main", file), made_of) == same


def test_an_unfinished_pull_is_not_swept_away_by_another_of_its_name(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    server.add("someone/Other", by_layer(2))
    with pytest.raises(Interrupted):
        pull_it(tmp_path, name="x", progress=until(900_000))
    downloads = Store(tmp_path / "store").downloads("x")
    before = {path: path.stat().st_size for path in downloads.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=f"unfinished pull of {REPO} at main has the name x") as caught:
        pull_it(tmp_path, "someone/Other", name="x")
    assert "freetoken rm x" in caught.value.remedy
    assert "--force" in caught.value.remedy
    assert {path: path.stat().st_size for path in downloads.rglob("*") if path.is_file()} == before
    assert contents(pull_it(tmp_path, name="x")) == expected
    with pytest.raises(Interrupted):
        pull_it(tmp_path, "someone/Other", name="x", force=True, progress=until(2_000_000))
    fetched = bytes_below(downloads)
    assert contents(pull_it(tmp_path, name="x")) == expected, "the old model is there"
    assert bytes_below(downloads) == fetched > 0, "the unfinished replacement is kept"


def test_what_came_is_not_summed_up_for_every_piece_that_is_written(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of hundreds of files is written in hundreds of thousands of pieces."""
    server.add(REPO, files)
    sums = told = 0
    real = Repo.fetched.fget

    def fetched(repo: Repo) -> int:
        nonlocal sums
        sums += 1
        assert real is not None
        return int(real(repo))

    def progress(phase: str, done: int, total: int) -> None:
        nonlocal told
        told += 1

    monkeypatch.setattr(Repo, "fetched", property(fetched))
    monkeypatch.setattr("engine.files.pulling.repository._LOOK_AGAIN_SECONDS", 100.0)
    pull_it(tmp_path, progress=progress)
    waits = 2 * 5 + 10  # before and after each of five files, and some while one comes
    assert 0 < sums <= waits < told


def test_a_gguf_tokenizer_that_cannot_be_written_leaves_nothing(server: HubServer, tmp_path: Path) -> None:
    def refuse(metadata: Mapping[str, Any], folder: Path) -> None:
        raise UnsupportedError("The pre-tokenizer is not known.")

    path = write_mixtral_gguf(tmp_path / "Tiny.gguf", mixtral_tensors(), gguf.GGMLQuantizationType.F16)
    server.add("someone/Tiny-GGUF", {path.name: path.read_bytes()})
    announced: list[Cost] = []
    with pytest.raises(UnsupportedError, match="pre-tokenizer"):
        pull_cost(find_target("someone/Tiny-GGUF"), write_tokenizer=refuse)
    with pytest.raises(UnsupportedError, match="pre-tokenizer"):
        pull_it(tmp_path, "someone/Tiny-GGUF", write_tokenizer=refuse, announce=announced.append)
    assert announced == []
    assert not Store(tmp_path / "store").downloads("tiny-gguf").exists()


@pytest.mark.parametrize("text", [b"", b"<html>", b"{}", b"[]", b'{"model": 1}'])
def test_a_tokenizer_that_is_none_is_told_before_weights_are_fetched(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], text: bytes
) -> None:
    server.add(REPO, files | {"tokenizer.json": text})
    with pytest.raises(CorruptFileError, match=r"tokenizer\.json") as caught:
        pull_it(tmp_path)
    assert caught.value.remedy == "Fetch that file again."
    assert not Store(tmp_path / "store").downloads("tiny-moe").exists()


def test_a_pull_that_goes_on_states_what_is_left(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, files)
    costs: list[Cost] = []
    with pytest.raises(Interrupted):
        pull_it(tmp_path, announce=costs.append, progress=until(900_000))
    pull_it(tmp_path, announce=costs.append)
    first, second = costs
    assert first.had == 0
    assert second.had > 0
    assert second.fetch == first.fetch - second.had
    assert second.fetch + second.had == first.fetch
