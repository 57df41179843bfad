"""The profile on disk: a round trip, and a sentence with a remedy for every file that must not be believed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, NotFoundError, UnsupportedError
from engine.base.profile import ExpertRate, Machine, Profile, Rate, ReadRate, load_profile, save_profile

HERE = Machine.describe("Example CPU 3000", 8, 64 * (1 << 30) - 300_000_000, "avx512", "0.1.0")
PROFILE = Profile(
    machine=HERE,
    measured_at="2026-01-02T03:04:05Z",
    reads=(ReadRate(1, Rate.of([30.0, 29.0, 31.5])), ReadRate(2, Rate.of([33.0]))),
    experts=(ExpertRate("q4_0", 1024, 512, 884_736, 2, Rate.of([31.0, 32.0]), Rate.of([0.97])),),
)


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state" / "profile.json"
    save_profile(PROFILE, path)
    assert load_profile(path, HERE) == PROFILE
    save_profile(replace(PROFILE, link=Rate.of([25.0, 26.0])), path)
    assert load_profile(path, HERE).link == Rate(25.5, 25.0, 26.0, 2)
    assert [entry.name for entry in path.parent.iterdir()] == ["profile.json"]


def test_memory_is_compared_in_whole_gibibytes() -> None:
    assert HERE.memory_gib == 64
    assert Machine.describe("Example CPU 3000", 8, 64 << 30, "avx512", "0.1.0") == HERE


def test_no_profile_yet(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="freetoken probe"):
        load_profile(tmp_path / "profile.json", HERE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu": "Other CPU"}, "cpu 'Example CPU 3000', here it is 'Other CPU'"),
        ({"memory_gib": 32}, "memory gib 64, here it is 32"),
        ({"kernels": "avx2"}, "kernels"),
        ({"release": "0.2.0"}, "release"),
        ({"usable_cores": 4}, "usable cores"),
    ],
)
def test_a_profile_of_another_machine_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(PROFILE, path)
    with pytest.raises(FreetokenError, match=words) as caught:
        load_profile(path, replace(HERE, **change))
    assert "freetoken probe" in caught.value.remedy


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_json() | {"version": 99}))
    with pytest.raises(UnsupportedError, match="version 99"):
        load_profile(path, HERE)


def edited(*keys: str | int, value: Any) -> str:
    data = json.loads(json.dumps(PROFILE.to_json()))
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        json.dumps(PROFILE.to_json())[:-20],
        edited("version", value="1"),
        edited("extra", value=1),
        edited("reads", value={}),
        edited("reads", value=[]),
        edited("reads", 0, "rate", "high", value=10**400),
        edited("reads", 0, "threads", value="two"),
        edited("reads", 0, "threads", value=True),
        edited("reads", 0, "rate", value=30.0),
        edited("reads", 0, "rate", "median", value=-1.0),
        edited("reads", 0, "rate", "high", value=1.0),
        edited("reads", 0, "rate", "high", value=float("inf")),
        edited("experts", 0, "share", value=None),
        edited("machine", "cpu", value=None),
        edited("link", value=[]),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(CorruptFileError, match=r"profile\.json is damaged") as caught:
        load_profile(path, HERE)
    assert "freetoken probe" in caught.value.remedy


@given(data=st.binary(max_size=200), cut=st.integers(0, 600))
def test_any_bytes_are_refused_with_one_of_our_errors(data: bytes, cut: int, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    path.write_bytes(json.dumps(PROFILE.to_json()).encode()[:cut] + data)
    try:
        outcome: Profile | str = load_profile(path, HERE)
    except FreetokenError as error:
        outcome = error.remedy
    assert outcome == PROFILE or "freetoken probe" in str(outcome)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profile.json")
    with pytest.raises(CorruptFileError, match="is no regular file"):
        load_profile(tmp_path / "profile.json", HERE)


def test_a_write_that_fails_leaves_the_old_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    save_profile(PROFILE, path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DoesNotFitError, match="No space left"):
        save_profile(replace(PROFILE, experts=()), path)
    assert load_profile(path, HERE) == PROFILE
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize("samples", [[0.0], [-1.0, 2.0], [float("nan")]])
def test_a_rate_is_positive(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate.of(samples)
