"""Safetensors folders: what we read equals what the safetensors package wrote; damaged folders get a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.safetensors_header import build_header, read_header
from engine.files.sources.opening import open_checkpoint
from engine.files.sources.safetensors.folder import open_folder
from engine.files.sources.safetensors.shards import weights_files
from engine.files.sources.tensors import row_count
from engine.files.untrusted import parse_object
from tests.hostile.safetensors_files import SAFETENSORS_FILES
from tests.unit.checkpoints import mixtral_tensors, write_folder, write_sharded_folder


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return mixtral_tensors()


def read_all(folder: Path) -> dict[str, bytes]:
    checkpoint = open_folder(folder)
    return {name: tensor.read(0, row_count(tensor)).tobytes() for name, tensor in checkpoint.tensors.items()}


def test_one_file_and_many_shards_hold_what_was_saved(tmp_path: Path, tensors: dict) -> None:
    expected = {name: values.tobytes() for name, values in tensors.items()}
    assert read_all(write_folder(tmp_path / "one", tensors)) == expected
    assert read_all(write_sharded_folder(tmp_path / "many", tensors, 3)) == expected


@pytest.mark.parametrize(("dtype", "codec"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_each_float_type_keeps_its_bits(tmp_path: Path, dtype: torch.dtype, codec: str) -> None:
    values = torch.randn(5, 7, 3).to(dtype)
    save_file({"w": values}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    tensor = open_folder(tmp_path).tensors["w"]
    assert (tensor.form, tensor.shape) == (codec, (5, 7, 3))
    assert tensor.read(4, 9).tobytes() == values.reshape(35, 3)[4:9].view(torch.uint8).numpy().tobytes()


def test_the_only_file_may_have_any_name(tmp_path: Path, tensors: dict) -> None:
    folder = write_folder(tmp_path, tensors)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert read_all(folder).keys() == tensors.keys()


def test_shards_that_the_index_does_not_name_are_ignored(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    (folder / "model-00099-of-00099.safetensors").write_bytes(b"anything")
    assert read_all(folder).keys() == tensors.keys()


def test_a_snapshot_of_links_is_read_like_a_folder(tmp_path: Path, tensors: dict) -> None:
    blobs = write_sharded_folder(tmp_path / "blobs", tensors, 2)
    snapshot = tmp_path / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        path.rename(blobs / f"blob{number}")
        os.symlink(f"../../blobs/blob{number}", snapshot / path.name)
    assert read_all(snapshot) == {name: values.tobytes() for name, values in tensors.items()}
    assert open_folder(snapshot).name == "0123abcd"


def test_a_snapshot_in_the_hubs_cache_is_called_by_its_repository(tmp_path: Path, tensors: dict) -> None:
    snapshot = tmp_path / "models--somebody--some-model" / "snapshots" / "0123abcd"
    assert open_folder(write_folder(snapshot, tensors)).name == "somebody/some-model"


def test_a_missing_shard_is_named(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(NotFoundError, match="model-00002-of-00002"):
        open_folder(folder)


def test_a_short_shard_is_named(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    shard = folder / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 4)
    with pytest.raises(CorruptFileError, match=r"model-00001-of-00002.*short"):
        open_folder(folder)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    home = index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.norm.weight"] = (
        home.replace("1-of", "X-of").replace("2-of", "1-of").replace("X-of", "2-of")
    )
    path.write_text(json.dumps(index))
    with pytest.raises(CorruptFileError, match=r"lacks the tensor 'model\.norm\.weight'"):
        open_folder(folder)


@pytest.mark.parametrize("overlay", ["model-00002-of-00002.safetensors", "adapter_model.safetensors"])
def test_of_a_tensor_in_two_files_the_one_that_the_index_names_counts(
    tmp_path: Path, tensors: dict, overlay: str
) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    name = sorted(tensors)[0]  # which the index puts into the first shard
    content = safetensors.numpy.load_file(folder / overlay) if (folder / overlay).exists() else {}
    safetensors.numpy.save_file(content | {name: tensors[name] + 1, "another": tensors[name]}, folder / overlay)
    assert read_all(folder) == {name: values.tobytes() for name, values in tensors.items()}


@pytest.mark.parametrize("index_name", ["model.safetensors.index.json", "weights.fp8.safetensors.index.json"])
def test_shards_may_have_any_names_that_the_index_knows(tmp_path: Path, tensors: dict, index_name: str) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    (folder / "model-00001-of-00002.safetensors").rename(folder / "experts.safetensors")
    text = (folder / "model.safetensors.index.json").read_text()
    (folder / "model.safetensors.index.json").unlink()
    (folder / index_name).write_text(text.replace("model-00001-of-00002", "experts"))
    assert read_all(folder) == {name: values.tobytes() for name, values in tensors.items()}


def test_two_indices_are_not_chosen_between(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    text = (folder / "model.safetensors.index.json").read_text()
    (folder / "model.safetensors.index.json").unlink()
    for name in ("a", "b"):
        (folder / f"{name}.safetensors.index.json").write_text(text)
    with pytest.raises(UnsupportedError, match=r"2 indices, a\.safetensors\.index\.json and b") as caught:
        open_folder(folder)
    assert "model.safetensors.index.json" in caught.value.remedy


@pytest.mark.parametrize("single", ["model.safetensors", "weights.safetensors"])
def test_the_same_weights_once_more_for_another_program_are_ignored(tmp_path: Path, tensors: dict, single: str) -> None:
    folder = write_folder(tmp_path / "one", tensors)
    (folder / "model.safetensors").rename(folder / single)
    many = write_sharded_folder(tmp_path / "many", tensors, 2)
    for where in (folder, many):
        for name in ("consolidated.safetensors", "consolidated.safetensors.index.json"):
            (where / name).write_bytes(b"anything")
        assert read_all(where) == {name: values.tobytes() for name, values in tensors.items()}


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors", "tokenizer.json", "LICENSE"])
def test_a_link_to_nothing_is_named(tmp_path: Path, tensors: dict, name: str) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    (folder / name).unlink(missing_ok=True)
    os.symlink("../../blobs/absent", folder / name)
    with pytest.raises(NotFoundError, match=rf"{name} is a link to \.\./\.\./blobs/absent, which") as caught:
        open_folder(folder)
    assert caught.value.remedy


def test_all_that_is_missing_is_counted(tmp_path: Path, tensors: dict) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 4)
    for number in (1, 3, 4):
        (folder / f"model-{number:05d}-of-00004.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model-00001-of-00004\.safetensors is missing, and so are 2 more.*4"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({"w": "../secret.safetensors"}, "no file name"),
        ({"w": "/etc/passwd"}, "no file name"),
        ({"w": 7}, "no file name"),
        ({}, "names no tensors"),
        ([], "not an object"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, weight_map: object, expected: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CorruptFileError, match=expected):
        open_folder(tmp_path)


def test_other_folders_get_a_sentence_that_helps(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NotFoundError, match="no safetensors"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match=r"pytorch_model\.bin"):
        open_folder(tmp_path)
    for number in (1, 2):
        (tmp_path / f"part{number}.safetensors").write_bytes(b"x")
    with pytest.raises(NotFoundError, match=r"no model\.safetensors\.index\.json"):
        open_folder(tmp_path)


def damage(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


INDEX, SHARD = "model.safetensors.index.json", "model-00001-of-00002.safetensors"
DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a config that is a list": ("config.json", damage("config.json", b"[]")),
    "a config that is cut": ("config.json", damage("config.json", b'{"model_type": "mix')),
    "an empty config": ("config.json", damage("config.json", b"")),
    "an index that is cut": (INDEX, damage(INDEX, b'{"weight_map": {"a": ')),
    "an index without a map": (INDEX, damage(INDEX, b"{}")),
    "an index of nothing": (INDEX, damage(INDEX, b'{"weight_map": {}}')),
    "an empty shard": (SHARD, damage(SHARD, b"")),
    "a page in place of a shard": (SHARD, damage(SHARD, b"<!doctype html><html><body>Too many requests</body>")),
    "a pointer in place of a shard": (
        SHARD,
        damage(SHARD, b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"),
    ),
    "half a shard": (SHARD, lambda folder: os.truncate(folder / SHARD, (folder / SHARD).stat().st_size // 2)),
    "a folder in place of a shard": (SHARD, lambda folder: ((folder / SHARD).unlink(), (folder / SHARD).mkdir())),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_refusal_names_the_file_and_says_what_to_do(tmp_path: Path, tensors: dict, name: str) -> None:
    folder = write_sharded_folder(tmp_path, tensors, 2)
    file, apply = DAMAGES[name]
    apply(folder)
    with pytest.raises(CorruptFileError) as caught:
        open_checkpoint(folder)
    assert str(folder / file) in caught.value.message
    assert "etch" in caught.value.remedy


def test_a_pipe_or_folder_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CorruptFileError, match="not a regular file"):
        open_folder(tmp_path)
    with pytest.raises(CorruptFileError, match="not a regular file"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_a_path_that_is_nothing_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UnsupportedError, match=r"notes\.txt"):
        open_checkpoint(tmp_path / "notes.txt")


# --- headers ---------------------------------------------------------------------------------------------------------


def parse(content: bytes) -> dict[str, object]:
    return dict(read_header(lambda start, stop: content[start:stop], len(content), "x.safetensors"))


@pytest.mark.parametrize("name", SAFETENSORS_FILES)
def test_a_hostile_header_gets_a_sentence_with_its_name(name: str) -> None:
    content, expected = SAFETENSORS_FILES[name]
    with pytest.raises(CorruptFileError, match=expected) as caught:
        parse(content)
    assert "x.safetensors" in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("name", SAFETENSORS_FILES)
def test_the_safetensors_package_refuses_what_we_refuse(name: str) -> None:
    ours_alone = ("a name twice", "a dimension that is true", "NaN")
    if name not in ours_alone:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(SAFETENSORS_FILES[name][0])


def test_a_built_header_is_read_by_the_safetensors_package() -> None:
    header = build_header([("a", "U8", (64,)), ("b", "F32", (16,))], alignment=4096)
    assert len(header) == 4096
    data = bytes(range(128))
    loaded = dict(safetensors.deserialize(header + data))
    assert bytes(loaded["a"]["data"]) == data[:64]
    assert bytes(loaded["b"]["data"]) == data[64:]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_header_never_crashes(data: st.DataObject) -> None:
    content = bytearray(build_header([("a", "U8", (64,)), ("b", "F32", (4, 4))], 64) + bytes(128))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 129))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptFileError):
        parse(bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_a_header_of_many_names_and_one_of_them_twice_is_refused_at_once() -> None:
    text = ",".join(f'"{number}": 0' for number in range(200_000))
    started = time.monotonic()
    with pytest.raises(CorruptFileError, match="holds '199999' twice"):
        parse_object(f'{{{text}, "199999": 0}}'.encode(), "x")
    names = [f"{number}.safetensors" for number in range(30_000)]
    assert len(weights_files(names, {name: name for name in names}, "x")) == len(names)
    assert time.monotonic() - started < 5
