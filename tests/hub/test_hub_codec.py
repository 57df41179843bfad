"""Pulling with experts in another codec, and what a pull has to say when it is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from engine.base.errors import UsageError
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.ftw.manifest import MANIFEST_NAME, write_manifest
from engine.files.ftw.opening import open_model
from engine.files.pulling.cost import Cost
from engine.files.pulling.pull import Pulled, is_there, pull, pull_cost
from engine.files.pulling.target import find_target
from engine.files.store import Store
from tests.hub.pulling import REPO, Interrupted, contents, until
from tests.hub.server import HubServer
from tests.unit.checkpoints import LLAMA, llama_tensors, write_folder
from tests.unit.converting import write_tokenizer


def pulled(tmp_path: Path, **options: Any) -> Pulled:
    """A pull, with all that it returns."""
    defaults: dict[str, Any] = {"write_tokenizer": lambda *_: None, "progress": lambda *_: None}
    return pull(REPO, Store(tmp_path / "store"), **(defaults | options))


def codecs(folder: Path) -> set[str]:
    return {field.shape.codec for bank in open_model(folder).banks for field in bank.fields}


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".bank", ".safetensors"))


@pytest.mark.parametrize("codec", ["mxfp4", "nvfp4", "q8_0"])
def test_experts_are_put_into_a_codec_as_a_conversion_does_it(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], checkpoint: Path, codec: str
) -> None:
    server.add(REPO, files)
    local = convert(checkpoint, tmp_path / "local", write_tokenizer=lambda *_: None, recipe=Recipe(expert_codec=codec))
    costs: list[Cost] = []
    found = pulled(tmp_path, expert_codec=codec, announce=costs.append)
    assert contents(found.folder) == contents(tmp_path / "local")
    assert found.converted is not None
    assert found.converted.requantised == local.requantised
    assert found.converted.notes() == local.notes()
    assert "relative error (rms)" in found.converted.notes()[0]
    assert costs == [pull_cost(find_target(REPO), codec, write_tokenizer=write_tokenizer)]
    assert (
        costs[0].disk == size_on_disk(found.folder) < pull_cost(find_target(REPO), write_tokenizer=write_tokenizer).disk
    )


def test_a_model_in_other_codecs_is_not_taken_for_this_one(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    published, requantised = pulled(tmp_path), pulled(tmp_path, name="small", expert_codec="q8_0")
    assert codecs(published.folder) != codecs(requantised.folder) == {"q8_0"}
    assert pulled(tmp_path) == Pulled(published.folder)
    assert pulled(tmp_path, name="small", expert_codec="q8_0") == Pulled(requantised.folder)
    with pytest.raises(UsageError, match="with experts in f32, not in q8_0") as caught:
        pulled(tmp_path, expert_codec="q8_0")
    assert "--name" in caught.value.remedy
    with pytest.raises(UsageError, match="with experts put into q8_0 on request, not as it was published"):
        pulled(tmp_path, name="small")
    with pytest.raises(UsageError, match="with experts in q8_0, not in mxfp4"):
        pulled(tmp_path, name="small", expert_codec="mxfp4")
    assert codecs(pulled(tmp_path, name="small", force=True).folder) == {"f32"}


def test_a_codec_that_the_experts_are_in_already_is_the_same_model(tmp_path: Path, checkpoint: Path) -> None:
    recipe = Recipe(expert_codec="mxfp4")
    convert(checkpoint, tmp_path / "changed", write_tokenizer=lambda *_: None, recipe=recipe)
    assert is_there(tmp_path / "changed", None, "mxfp4")
    manifest = open_model(tmp_path / "changed").manifest
    unchanged = dict(manifest.provenance, requantised={**manifest.provenance["requantised"], "tensors": 0})
    rewrite(tmp_path / "changed", unchanged)
    assert is_there(tmp_path / "changed", None, "mxfp4")
    assert is_there(tmp_path / "changed", None, None), "published in mxfp4: nothing was changed"


def rewrite(folder: Path, provenance: dict[str, Any]) -> None:
    """Gives a model another origin."""
    manifest = replace(open_model(folder).manifest, provenance=provenance)
    (folder / MANIFEST_NAME).write_bytes(write_manifest(manifest))


def test_codecs_are_not_mixed_in_an_unfinished_pull(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    server.add(REPO, files)
    with pytest.raises(Interrupted):
        pulled(tmp_path, expert_codec="mxfp4", progress=until(900_000))
    with pytest.raises(UsageError, match="with other settings"):
        pulled(tmp_path)
    done = pulled(tmp_path, expert_codec="mxfp4")
    assert codecs(done.folder) == {"mxfp4"}


def test_another_codec_is_refused_before_the_hub_is_asked(server: HubServer, tmp_path: Path) -> None:
    for refused in (
        lambda: pulled(tmp_path, expert_codec="q4_0"),
        lambda: pull_cost(find_target(REPO), "q4_0", write_tokenizer=write_tokenizer),
    ):
        with pytest.raises(UsageError, match="cannot be put into 'q4_0'"):
            refused()
    assert server.requests == []


def test_a_model_without_experts_has_none_to_put_into_a_codec(server: HubServer, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "dense", llama_tensors(), LLAMA)
    server.add(REPO, {path.name: path.read_bytes() for path in folder.iterdir()})
    with pytest.raises(UsageError, match="has no experts that could be put into q8_0"):
        pulled(tmp_path, expert_codec="q8_0")
    assert not Store(tmp_path / "store").downloads("tiny-moe").exists()
    pulled(tmp_path)
    with pytest.raises(UsageError, match="has no experts that could be put into q8_0"):
        pulled(tmp_path, expert_codec="q8_0")


def test_what_was_left_out_is_told(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    shard, index = "model-00005-of-00005.safetensors", "model.safetensors.index.json"
    tensors = load(files[shard]) | {"vision_tower.weight": np.ones((4, 4), np.float32)}
    weight_map = json.loads(files[index])["weight_map"] | {"vision_tower.weight": shard}
    server.add(REPO, files | {shard: save(tensors), index: json.dumps({"weight_map": weight_map}).encode()})
    done = pulled(tmp_path).converted
    assert done is not None
    assert done.notes() == ("Left out: 1 vision tensor.",)
