"""What is said of the cost of a model before it is taken in, on machines that have room and that have not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.files.pulling.catalogue import read_catalogue
from engine.files.pulling.cost import Cost
from engine.files.pulling.target import Target, find_target
from engine.files.store import Store
from freetoken_cli import forecast
from freetoken_cli.forecast import Forecast
from tests.cli.harness import Home

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB of free disk, 20 GiB of memory."""
    monkeypatch.setattr(forecast, "free_space", lambda path: (path, 100 * GIB))
    monkeypatch.setattr(forecast, "read_memory", lambda: (20 * GIB, 15 * GIB))


def _forecast(tmp_path: Path, cost: Cost, target: Target | None = None) -> Forecast:
    return Forecast.of(target or Target(Path("/models/some"), "some"), cost, Store(tmp_path))


@pytest.mark.usefixtures("machine")
def test_what_fits_everywhere(tmp_path: Path) -> None:
    found = _forecast(tmp_path, Cost(fetch=8 * GIB, disk=9 * GIB, room=12 * GIB))
    assert found.fits
    assert found.sentence() == (
        "some: 8.00 GiB to fetch, 9.00 GiB on disk (100 GiB free), 9.00 GiB of memory (20.0 GiB here): fits in memory."
    )


@pytest.mark.usefixtures("machine")
def test_what_is_larger_than_memory_fits_too(tmp_path: Path) -> None:
    found = _forecast(tmp_path, Cost(fetch=0, disk=30 * GIB, room=30 * GIB))
    assert found.fits
    assert found.sentence().endswith("larger than memory, so experts come from disk.")
    assert "to fetch" not in found.sentence()


@pytest.mark.usefixtures("machine")
def test_what_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    cost = Cost(fetch=90 * GIB, disk=90 * GIB, room=104 * GIB)
    found = _forecast(tmp_path, cost)
    assert (found.fits, found.short) == (False, 4 * GIB)
    assert found.sentence().endswith("does not fit, 4.00 GiB of disk too little.")
    assert found.to_json()["short"] == 4 * GIB


@pytest.mark.usefixtures("machine")
def test_what_an_unfinished_pull_has_already_is_not_needed_again(tmp_path: Path) -> None:
    cost = Cost(fetch=0, disk=100 * GIB + 50_000, room=100 * GIB + 50_000)
    assert not _forecast(tmp_path, cost).fits
    begun = tmp_path / "some.partial"
    begun.mkdir()
    (begun / "dense.safetensors").write_bytes(bytes(60_000))
    assert _forecast(tmp_path, cost).fits


@pytest.mark.usefixtures("machine")
def test_the_catalogue_says_what_memory_is_wanted_and_under_which_licence(tmp_path: Path) -> None:
    model = read_catalogue()["gpt-oss-20b"]
    found = _forecast(tmp_path, Cost(fetch=model.download, disk=model.size, room=model.size), find_target(model.name))
    assert found.memory_wanted == model.memory > model.size
    assert found.sentence().endswith(": fits in memory. Licence: Apache-2.0.")


def test_a_pull_of_what_lies_here_is_said_to_fit_just_where_it_does(
    home: Home, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull_with(free: int, *args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
        return home.run_here("pull", str(checkpoint), *args)

    needed = json.loads(pull_with(100 * GIB, "--dry-run", "--json").stdout)["room"]
    assert [pull_with(needed - 1, *args).returncode for args in (["--dry-run"], [])] == [4, 4]
    assert [pull_with(needed, *args).returncode for args in (["--dry-run"], [])] == [0, 0]


def test_what_the_disk_cannot_hold_is_exit_code_4(
    home: Home, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "free_space", lambda path: (path, 1000))
    dry = home.run_here("pull", "demo", "--dry-run", "--json")
    plan = json.loads(dry.stdout)
    assert (dry.returncode, plan["fits"], plan["short"]) == (4, False, plan["room"] - 1000)
    ahead = home.run_here("run", str(checkpoint), "--estimate", "--json", "--kv", "1k")
    estimate = json.loads(ahead.stdout)
    assert (ahead.returncode, estimate["fits"], estimate["disk_free"]) == (4, False, 1000)
    assert "of disk too little" in estimate["problem"]
    assert estimate["kv_bytes"] > 0, "memory is planned all the same"
