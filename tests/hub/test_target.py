"""What the argument of a pull means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.base.errors import NotFoundError, UsageError
from engine.files.hub.address import HubRepo
from engine.files.pulling.catalogue import PackageFile, parse_catalogue
from engine.files.pulling.target import Target, find_target, looks_like_path
from tests.unit.catalogue_entry import ENTRY

GGUF = "Qwen3-30B-A3B-Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of a package and a repository, and an empty folder to stand in."""
    tiny = parse_catalogue(ENTRY, "x")["tiny"]
    hub = replace(tiny, name="large", source=HubRepo("someone/Large", "abc", None))
    monkeypatch.setattr("engine.files.pulling.target.read_catalogue", lambda: {"tiny": tiny, "large": hub})
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://mirror.example:8080/hub")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("what", "options", "source", "name"),
    [
        ("Qwen/Qwen3-30B-A3B", {}, HubRepo("Qwen/Qwen3-30B-A3B"), "qwen3-30b-a3b"),
        ("https://huggingface.co/Qwen/Qwen3-30B-A3B", {}, HubRepo("Qwen/Qwen3-30B-A3B"), "qwen3-30b-a3b"),
        ("hf.co/Qwen/Qwen3-30B-A3B/", {}, HubRepo("Qwen/Qwen3-30B-A3B"), "qwen3-30b-a3b"),
        ("a/b", {"revision": "v2", "name": "mine"}, HubRepo("a/b", "v2"), "mine"),
        ("a/b-GGUF", {"file": GGUF}, HubRepo("a/b-GGUF", "main", GGUF), "qwen3-30b-a3b-q4_k_m"),
        ("a/b-GGUF", {"file": "Q4_K_M"}, HubRepo("a/b-GGUF", "main", "Q4_K_M"), "b-gguf.q4_k_m"),
        (
            "a/b-GGUF",
            {"file": "BF16/b-BF16-00001-of-00002.gguf"},
            HubRepo("a/b-GGUF", "main", "BF16/b-BF16-00001-of-00002.gguf"),
            "b-bf16",
        ),
        ("https://huggingface.co/a/b/tree/main", {}, HubRepo("a/b"), "b"),
        ("hf.co/a/b/tree/refs%2Fpr%2F1?x=1#top", {}, HubRepo("a/b", "refs/pr/1"), "b"),
        ("https://huggingface.co/a/b/blob/v2/README.md", {}, HubRepo("a/b", "v2"), "b"),
        (f"https://hf.co/a/b/blob/main/{GGUF}", {}, HubRepo("a/b", "main", GGUF), "qwen3-30b-a3b-q4_k_m"),
        ("https://huggingface.co/a/b/tree/v2", {"revision": "v3"}, HubRepo("a/b", "v3"), "b"),
        ("http://mirror.example:8080/hub/a/b/tree/v2", {}, HubRepo("a/b", "v2"), "b"),
        ("./some/folder", {}, Path("some/folder"), "folder"),
        ("/some/Folder", {}, Path("/some/Folder"), "folder"),
        ("a/b/c", {}, Path("a/b/c"), "c"),
        ("a/model.gguf", {}, Path("a/model.gguf"), "model"),
        ("model.gguf", {"name": "x"}, Path("model.gguf"), "x"),
    ],
)
def test_paths_and_repositories(what: str, options: dict[str, str], source: Path | HubRepo, name: str) -> None:
    assert find_target(what, **options) == Target(source, name)


def test_what_is_there_is_meant_before_the_hub(tmp_path: Path) -> None:
    (tmp_path / "Qwen" / "Small").mkdir(parents=True)
    (tmp_path / "large").mkdir()
    assert find_target("Qwen/Small").source == Path("Qwen/Small")
    assert find_target("Qwen/Other").source == HubRepo("Qwen/Other")
    assert find_target("https://huggingface.co/Qwen/Small").source == HubRepo("Qwen/Small")
    assert find_target("large").source == Path("large")
    assert not looks_like_path("tiny")
    for name in ("weights.bin", "tiny"):
        (tmp_path / name).write_text("")
    assert find_target("weights.bin").source == Path("weights.bin")
    assert not looks_like_path("tiny")


def test_names_of_the_catalogue() -> None:
    tiny, large = find_target("tiny"), find_target("large", name="mine")
    assert isinstance(tiny.source, PackageFile)
    assert (tiny.name, tiny.model and tiny.model.name) == ("tiny", "tiny")
    assert (large.source, large.name) == (HubRepo("someone/Large", "abc"), "mine")
    assert find_target("large", revision="main", file="Q8_0").source == HubRepo("someone/Large", "main", "Q8_0")
    with pytest.raises(NotFoundError, match="Did you mean tiny"):
        find_target("tinny")


@pytest.mark.parametrize("what", ["./folder", "tiny"])
@pytest.mark.parametrize("flag", ["revision", "file"])
def test_a_revision_and_a_file_need_a_repository(what: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"--{flag} chooses from a repository"):
        find_target(what, **{flag: "x"})


def test_a_name_of_which_nothing_is_left() -> None:
    with pytest.raises(UsageError, match="--name"):
        find_target("./---")


@pytest.mark.parametrize(
    "what",
    [
        "https://huggingface.co/a",
        "https://huggingface.co/datasets/a",
        "https://huggingface.co/datasets/a/b",
        "https://huggingface.co/a/b/tree",
        "hf.co/a",
        "https://elsewhere.example/a/b",
        "http://mirror.example:8080/a/b",
        "https://[/a/b",
    ],
)
def test_addresses_of_no_model(what: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_target(what)
    assert caught.value.message == f"{what} is not the address of a model."
