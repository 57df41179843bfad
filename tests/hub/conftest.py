"""A Hub of its own for every test, and huggingface_hub pointed at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.files.conversion.convert import convert
from engine.files.hub import patience
from tests.hub.pulling import contents
from tests.hub.server import HubServer
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_sharded_folder

TOKEN = "hf_not_a_real_token"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub on loopback, which is where huggingface_hub looks; cache and token are away from the user's."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield server


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder in five shards, with what belongs beside them."""
    config = MIXTRAL | {"num_hidden_layers": 4}
    folder = write_sharded_folder(
        tmp_path_factory.mktemp("checkpoint") / "Tiny-MoE", mixtral_tensors(config), 5, config
    )
    (folder / "tokenizer.json").write_text('{"model": {}}' + " " * 3000)
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    (folder / "README.md").write_text("nothing that is wanted")
    return folder


@pytest.fixture(scope="session")
def files(checkpoint: Path) -> dict[str, bytes]:
    """The content of that folder, as the server wants it."""
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries, and for the disk, are of no interest here; processes that are killed have both."""
    monkeypatch.setattr(patience, "pause", lambda seconds, stop: stop.is_set())
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


@pytest.fixture(scope="session")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the folder on disk is converted into."""
    dest = tmp_path_factory.mktemp("expected") / "tiny-moe"
    convert(checkpoint, dest, write_tokenizer=lambda metadata, folder: None)
    return contents(dest)
