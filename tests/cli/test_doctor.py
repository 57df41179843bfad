"""`freetoken doctor` on checkpoints: what they need, what of them is not understood, and what that means."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.base.hardware import read_hardware
from freetoken_cli.checks import Surroundings, check_disk, check_store
from tests.cli.harness import Home

Change = Callable[[dict[str, Any]], dict[str, Any]]


def changed(home: Home, checkpoint: Path, config: Change = dict, tensors: Change = dict) -> Path:
    """A copy of the checkpoint with another config.json and other tensors."""
    folder = home.folder / "changed"
    shutil.copytree(checkpoint, folder)
    (folder / "config.json").write_text(json.dumps(config(json.loads((checkpoint / "config.json").read_text()))))
    save_file(tensors(load_file(checkpoint / "model.safetensors")), folder / "model.safetensors")
    return folder


def examined(home: Home, folder: Path) -> tuple[int, dict[str, Any]]:
    done = home.run_here("doctor", str(folder), "--json")
    return done.returncode, json.loads(done.stdout)


def failures(document: dict[str, Any]) -> list[str]:
    return [check["detail"] for check in document["checks"] if check["status"] == "fail"]


def test_it_tells_what_a_checkpoint_needs_and_how_large_it_becomes(home: Home, checkpoint: Path) -> None:
    code, document = examined(home, checkpoint)
    found = document["checkpoint"]
    assert (code, found["family"], found["known"]) == (0, "mixtral", True)
    assert found["parts"] == ["attention", "moe"]
    assert {"route", "experts", "attention"} <= set(found["operations"])
    sizes = found["sizes"]
    assert sizes["total_bytes"] == sizes["dense_bytes"] + sizes["bank_bytes"]
    assert sizes["experts"] == 8
    assert home.run_here("convert", str(checkpoint), str(home.folder / "made"), "-q").returncode == 0
    made = sum(
        path.stat().st_size for path in (home.folder / "made").iterdir() if path.suffix in (".bank", ".safetensors")
    )
    assert sizes["total_bytes"] == made
    assert (found["missing"], found["unexplained"], found["unread"]) == ({}, {}, [])


def test_a_field_that_nothing_reads_is_a_note(home: Home, checkpoint: Path) -> None:
    folder = changed(home, checkpoint, lambda config: {**config, "attention_twist": 3, "router_aux_loss_coef": 0.1})
    code, document = examined(home, folder)
    assert (code, document["checkpoint"]["unread"]) == (0, ["attention_twist"])
    assert "attention_twist" in home.run_here("doctor", str(folder)).stdout


def test_tensors_that_are_missing_and_that_nothing_explains_are_counted_by_pattern(
    home: Home, checkpoint: Path
) -> None:
    def twisted(tensors: dict[str, Any]) -> dict[str, Any]:
        kept = {name: values for name, values in tensors.items() if ".k_proj." not in name}
        extra = {f"model.layers.{layer}.twist.weight": tensors["model.norm.weight"].copy() for layer in range(2)}
        return kept | extra

    code, document = examined(home, changed(home, checkpoint, tensors=twisted))
    assert code == 1
    assert document["checkpoint"]["missing"] == {"model.layers.*.self_attn.k_proj.weight": 2}
    assert document["checkpoint"]["unexplained"] == {"model.layers.*.twist.weight": 2}
    assert failures(document) == [
        "2 tensors are missing: 2 x model.layers.*.self_attn.k_proj.weight",
        "2 tensors are explained by no rule: 2 x model.layers.*.twist.weight",
    ]


def test_whole_numbers_beside_the_weights_are_none_of_its_business(home: Home, checkpoint: Path) -> None:
    extra = {"model.visual.position_ids": np.arange(4)}
    code, document = examined(home, changed(home, checkpoint, tensors=lambda tensors: {**tensors, **extra}))
    assert (code, failures(document)) == (0, [])


def test_the_nearest_of_unknown_families_is_named(home: Home, checkpoint: Path) -> None:
    def renamed(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "model_type": "novel", "architectures": ["NovelForCausalLM"]}

    code, document = examined(home, changed(home, checkpoint, renamed))
    found = document["checkpoint"]
    assert (code, found["family"], found["known"], found["explained"]) == (1, "mixtral", False, 1.0)
    assert "of mixtral, the nearest family" in failures(document)[0]


@pytest.mark.parametrize(("field", "value"), [("hidden_act", "swoosh"), ("num_attention_heads", "two")])
def test_a_setting_that_is_refused_is_told(home: Home, checkpoint: Path, field: str, value: str) -> None:
    code, document = examined(home, changed(home, checkpoint, lambda config: {**config, field: value}))
    assert code == 1
    assert field in failures(document)[0]
    assert document["checkpoint"]["sizes"] is None


def test_what_is_not_there_is_not_found(home: Home) -> None:
    assert home.run_here("doctor", "./nowhere").returncode == 3


@pytest.mark.parametrize(
    ("there", "denied", "status", "words"),
    [
        (True, 0, "ok", ""),
        (True, os.R_OK, "fail", "may not be read"),
        (True, os.W_OK, "note", "no pulls"),
        (False, 0, "ok", "made by the first pull"),
        (False, os.W_OK, "fail", "is not there, and"),
    ],
)
def test_a_store_that_this_user_may_not_use_is_told(
    home: Home, monkeypatch: pytest.MonkeyPatch, there: bool, denied: int, status: str, words: str
) -> None:
    if there:
        home.paths.store.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & denied)
    found = check_store(Surroundings(home.paths, read_hardware()))
    assert (found.status, words in found.detail) == (status, True), found


def test_a_store_below_a_closed_folder_does_not_end_the_other_checks(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path, **how: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    around = Surroundings(home.paths, read_hardware())
    monkeypatch.setattr(Path, "stat", closed)
    assert check_store(around).status == "fail"
    assert check_disk(around).name == "disk"
