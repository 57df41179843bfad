"""A home of its own for every test, and a fake front in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from freetoken_cli.front_process import health
from tests.cli.harness import FAKE_FRONT, ROOT, FakeFront, Home, ours, wait_for
from tests.cli.tiny import write_tiny_checkpoint


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """An empty home. Its runtime folder has a short name, because the path of a Unix socket is short."""
    runtime = Path(tempfile.mkdtemp(prefix="ft-"))
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    environment = {
        **kept,
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "FREETOKEN_STORE": str(tmp_path / "models"),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
    }
    yield Home(tmp_path, runtime, environment)
    shutil.rmtree(runtime)


@pytest.fixture
def front(home: Home) -> Iterator[FakeFront]:
    """A fake front at the place where the program looks for one."""
    paths = home.paths
    paths.runtime.mkdir(mode=0o700)
    config = {"socket": str(paths.socket), "lock": str(paths.lock), "store": str(paths.store)}
    process = subprocess.Popen([*FAKE_FRONT, json.dumps(config)])
    wait_for(lambda: health(paths.socket) is not None)
    yield FakeFront(process, Path(f"{paths.socket}.requests"))
    process.kill()
    process.wait()


@pytest.fixture
def ready(home: Home, front: FakeFront) -> FakeFront:
    """A fake front, and a store that has a `demo`."""
    folder = home.paths.store / "demo"
    folder.mkdir(parents=True)
    (folder / "ftw.json").write_text("{}")
    return front


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "Tiny-Mixtral")


@pytest.fixture(scope="session")
def converted(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint as FTW, made once and copied by tests."""
    from engine.files.conversion.convert import convert
    from engine.text.gguf_tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("converted") / "tiny"
    convert(checkpoint, folder, write_tokenizer=write_tokenizer)
    return folder


@pytest.fixture
def stored(home: Home, converted: Path) -> Home:
    """A home whose store has the model `tiny`."""
    shutil.copytree(converted, home.paths.store / "tiny")
    return home


@pytest.fixture
def alive(stored: Home) -> Iterator[Home]:
    """As `stored`, with a background server that is ended afterwards."""
    yield stored
    stored.run_here("stop", "--all")
    assert ours(stored) == []
