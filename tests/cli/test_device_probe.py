"""`freetoken probe` on a simulated device: its document, its picture, its plot, and whose profile is whose."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.harness import Home

SIM = ("probe", "tiny", "--device", "sim", "--seconds", "0.1", "--threads", "1")


def test_a_device_is_measured_drawn_and_kept_beside_the_cpu(stored: Home) -> None:
    done = stored.run_here(*SIM, "--json", "--plot", "curve.png")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == 3
    kept = stored.paths.profile.with_name("profile-sim.json")
    assert document["profile"] == str(kept)
    assert document["uuid"].startswith("SIM-")
    assert {entry["record_bytes"] for entry in document["links"]} == {document["record_bytes"]}
    together = [run for run in document["runs"] if 0 < run["fills"] < run["misses"]]
    assert [run["fills"] for run in together] == [1, 2, 3, 4, 5, 6, 7]
    assert all(run["fill_seconds"] > 0 and run["cpu_seconds"] > 0 for run in together)
    assert 0 < document["fraction_together"] < 1
    assert set(document["timing"]) == {"fill", "cpu", "fill_slowed", "cpu_slowed"}
    assert (stored.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert kept.exists()
    assert not stored.paths.profile.exists()


def test_the_picture_says_that_it_is_simulated_and_which_f_is_in_force(stored: Home) -> None:
    done = stored.run_here(*SIM)
    assert done.returncode == 0, done.stderr
    for words in (
        "simulated: fills are copies",
        "Fills (B_P)",
        "0 of 8",
        "8 of 8",
        "Eq. 2",
        "by both at once (in force)",
    ):
        assert words in done.stdout


def test_plots_that_cannot_be_are_refused_before_anything_is_measured(
    stored: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, device, words in (
        ("curve.png", "cpu", "the cpu has no fills"),
        ("curve.txt", "sim", "does not end in .png"),
        ("absent/curve.png", "sim", "is no folder"),
    ):
        done = stored.run_here("probe", "tiny", "--device", device, "--plot", file)
        assert done.returncode == 2
        assert words in done.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = stored.run_here(*SIM, "--plot", "curve.png")
    assert done.returncode == 1
    assert "freetoken-cli[plot]" in done.stderr
    assert not stored.paths.profile.with_name("profile-sim.json").exists()
