"""FTW folders: golden bytes, values by an independent reading, hostile folders, and a fuzzed reader."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.base import errors
from engine.base.errors import CorruptFileError, FreetokenError, UnsupportedError
from engine.files.codecs import CODECS, FORMS, align
from engine.files.ftw.manifest import sealed
from engine.files.ftw.opening import open_model
from tests.hostile.ftw_folders import FTW_FOLDERS, rewrite
from tests.parity.codecs_numpy import pack
from tests.unit.tiny_ftw import EXPERTS, HIDDEN, TENSORS, WIDTH, write_tiny_ftw

GOLDEN = Path(__file__).parent / "golden" / "tiny.ftw"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "tiny.ftw"))


def test_the_writer_gives_the_golden_bytes(tmp_path: Path) -> None:
    write_tiny_ftw(tmp_path / "new.ftw")
    written = {path.name: path.read_bytes() for path in (tmp_path / "new.ftw").iterdir()}
    golden = {path.name: path.read_bytes() for path in GOLDEN.iterdir()}
    assert written.keys() == golden.keys()
    for name, content in golden.items():
        assert written[name] == content, name


def test_dense_tensors_are_what_went_in() -> None:
    dense = open_model(GOLDEN).dense
    assert {name: (t.codec, t.rows, t.cols, t.vector) for name, t in dense.items()} == {
        "embed": ("bf16", 20, HIDDEN, False),
        "final_norm": ("f32", 1, HIDDEN, True),
        "odd_bias": ("f32", 1, 5, True),
    }
    assert bytes(dense["embed"].data) == pack("bf16", TENSORS["embed"].data, HIDDEN).tobytes()
    assert bytes(dense["final_norm"].data) == TENSORS["norm"].data.tobytes()
    bias = np.frombuffer(dense["odd_bias"].data, np.float32)
    assert (bias == np.concatenate([TENSORS["bias"].data[0].view(np.float16), np.zeros(11)])).all()


def test_records_are_what_went_in_and_every_layer_is_in_its_bank() -> None:
    first, second = open_model(GOLDEN).banks
    assert (first.layers, second.layers) == ((0, 2), (1,))
    for bank, codec in ((first, "q4_0"), (second, "q8_0")):
        assert [(field.name, field.shape.codec) for field in bank.fields] == [("gate_up", codec), ("down", codec)]
        for index in range(bank.count):
            layer, expert = bank.layers[index // EXPERTS], index % EXPERTS
            names = [f"{name}.{layer}.{expert}" for name in ("gate", "up", "down")]
            gate, up = (pack(codec, TENSORS[name].data, HIDDEN) for name in names[:2])
            turns = np.stack([gate, up], axis=1).tobytes()
            expected = turns + pack(codec, TENSORS[names[2]].data, WIDTH).tobytes()
            assert bytes(bank.record(index)) == expected.ljust(bank.record_bytes, b"\0")


def test_a_record_outside_the_bank_is_our_mistake() -> None:
    bank = open_model(GOLDEN).banks[0]
    for index in (-1, bank.count):
        with pytest.raises(IndexError):
            bank.record(index)


def test_everything_is_aligned_and_read_only() -> None:
    model = open_model(GOLDEN)
    views = [tensor.data for tensor in model.dense.values()]
    views += [bank.record(index) for bank in model.banks for index in range(bank.count)]
    for view in views:
        assert np.frombuffer(view, np.uint8).ctypes.data % 64 == 0
        assert view.readonly


def test_dense_tensors_are_an_ordinary_safetensors_file() -> None:
    loaded = safetensors.numpy.load_file(GOLDEN / "dense.safetensors")
    model = open_model(GOLDEN)
    assert {name: values.tobytes() for name, values in loaded.items()} == {
        name: bytes(tensor.data) for name, tensor in model.dense.items()
    }


def test_hashes_are_those_of_the_bytes() -> None:
    model = open_model(GOLDEN)
    for name, info in model.manifest.dense.items():
        assert xxhash.xxh3_128_hexdigest(model.dense[name].data) == info.hash
    for bank, info in zip(model.banks, model.manifest.banks, strict=True):
        hashes = [digest for shard in info.shards for digest in shard.hashes]
        assert [xxhash.xxh3_128_hexdigest(bank.record(index)) for index in range(bank.count)] == hashes


def test_views_outlive_the_folder(folder: Path) -> None:
    model = open_model(folder)
    shutil.rmtree(folder)
    assert bytes(model.banks[0].record(0)) == bytes(open_model(GOLDEN).banks[0].record(0))


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (16, 64), (17, 96), (40, 160)])
def test_sizes_of_packed_matrices_are_those_of_the_twin(codec: str, rows: int, cols: int) -> None:
    cols = align(cols, CODECS[codec].cols_unit)
    raw = np.zeros((rows, FORMS[codec].row_bytes(cols)), np.uint8)
    assert CODECS[codec].packed_bytes(rows, cols) == pack(codec, raw, cols).size


# --- hostile folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FTW_FOLDERS)
def test_a_hostile_folder_gets_a_sentence_with_its_name(folder: Path, name: str) -> None:
    change, kind, expected = FTW_FOLDERS[name]
    open_model(folder)
    change(folder)
    with pytest.raises(getattr(errors, kind), match=expected) as caught:
        open_model(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "experts-0-0.bank").unlink()
    (folder / "experts-0-0.bank").mkdir()
    with pytest.raises(CorruptFileError, match="not a regular file") as caught:
        open_model(folder)
    assert "--force" in caught.value.remedy


@pytest.mark.parametrize(("call", "number"), [("os.open", errno.EMFILE), ("mmap.mmap", errno.ENOMEM)])
def test_what_this_process_lacks_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(call, refuse)
    with pytest.raises(FreetokenError, match=r"too many files|memory ran out") as caught:
        open_model(folder)
    assert not isinstance(caught.value, CorruptFileError)
    assert "ulimit" in caught.value.remedy


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


PLACES = places({k: v for k, v in json.loads((GOLDEN / "ftw.json").read_bytes()).items() if k != "hash"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=JSON_VALUES, removed=st.booleans())
def test_a_manifest_with_any_value_anywhere_never_crashes(
    folder: Path, place: tuple[Any, ...], value: Any, removed: bool
) -> None:
    shutil.copy(GOLDEN / "ftw.json", folder / "ftw.json")

    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        if removed:
            del content[place[-1]]
        else:
            content[place[-1]] = value

    rewrite(folder, change)
    with contextlib.suppress(CorruptFileError, UnsupportedError):
        touch_everything(folder)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_manifest_with_damaged_bytes_never_crashes(folder: Path, data: st.DataObject) -> None:
    text = (GOLDEN / "ftw.json").read_bytes()
    body = bytearray(text[: text.rindex(b'"hash"')])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    (folder / "ftw.json").write_bytes(sealed(bytes(body)))
    with contextlib.suppress(CorruptFileError, UnsupportedError):
        touch_everything(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_cut_file_is_always_refused(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in GOLDEN.iterdir())))
    size = (GOLDEN / name).stat().st_size
    os.truncate(folder / name, data.draw(st.integers(0, size - 1)))
    with pytest.raises(CorruptFileError) as caught:
        open_model(folder)
    assert name in str(caught.value)
    shutil.copy(GOLDEN / name, folder / name)


def touch_everything(folder: Path) -> None:
    """Opens a folder and reads its first and last bytes everywhere, so that a bad size would show."""
    model = open_model(folder)
    for bank in model.banks:
        for index in range(bank.count):
            record = bank.record(index)
            assert len(record) == bank.record_bytes
            for field in bank.fields:
                assert len(record[field.offset :]) >= field.stored_bytes
    for tensor in model.dense.values():
        bytes(tensor.data[:1])
