"""Python's search for cycles is off where it is of no use, and on again afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from engine.base.collector import no_cycles
from engine.base.errors import UnsupportedError
from engine.files.conversion import plan
from engine.files.conversion.job import plan_job
from engine.files.sources.opening import open_checkpoint
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder


def test_it_is_off_inside_and_as_before_outside() -> None:
    assert gc.isenabled()
    with no_cycles():
        assert not gc.isenabled()
        with no_cycles():
            assert not gc.isenabled()
        assert not gc.isenabled(), "whoever switched it off first switches it on"
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), no_cycles():
        raise ValueError("inside")
    assert gc.isenabled()


def test_it_is_off_while_a_checkpoint_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    resolve = plan.resolve
    monkeypatch.setattr(plan, "resolve", lambda *args: seen.append(gc.isenabled()) or resolve(*args))
    plan_job(open_checkpoint(write_folder(tmp_path / "model", mixtral_tensors())))
    assert (seen, gc.isenabled()) == ([False], True)
    unknown = write_folder(tmp_path / "unknown", mixtral_tensors(), MIXTRAL | {"model_type": "perceiver"})
    with pytest.raises(UnsupportedError):
        plan_job(open_checkpoint(unknown))
    assert gc.isenabled()
