"""Bad input, a full disk and a changing source are named, and nothing is left behind."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.base import errors
from engine.base.errors import (
    CorruptFileError,
    DoesNotFitError,
    FreetokenError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from engine.base.progress import silent
from engine.files import space
from engine.files.conversion.partial import Partial
from engine.files.ftw.verify import verify
from tests.unit.checkpoints import MIXTRAL, write_folder, write_mixtral_gguf
from tests.unit.converting import contents, resumed_at, run


def refuse(tmp_path: Path, source: Path, kind: type[Exception], expected: str) -> None:
    """The conversion fails with that sentence and leaves nothing behind."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind, match=expected):
        run(source, tmp_path / "dest")
    assert sorted(tmp_path.iterdir()) == before


def rewrite_config(source: Path, **changes: Any) -> None:
    (source / "config.json").write_text(json.dumps(MIXTRAL | changes))


def test_an_unknown_family_is_named_before_anything_is_written(tmp_path: Path, source: Path) -> None:
    rewrite_config(source, model_type="mixtrel")
    refuse(tmp_path, source, UnsupportedError, "mixtrel.*")


def test_a_missing_tensor_is_named(tmp_path: Path, tensors: dict) -> None:
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    source = write_folder(tmp_path / "source", {key: value for key, value in tensors.items() if key != name})
    refuse(tmp_path, source, CorruptFileError, re.escape(name))


def test_a_tensor_that_nobody_asked_for_is_named(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", tensors | {"model.layers.0.mystery.weight": np.ones((2, 2), np.float32)})
    refuse(tmp_path, source, UnsupportedError, "mystery")


def test_a_shape_that_is_not_the_configs_is_named(tmp_path: Path, tensors: dict) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    source = write_folder(tmp_path / "source", tensors | {name: np.ones((48, 64), np.float32)})
    refuse(tmp_path, source, CorruptFileError, re.escape(name))


def test_a_codec_that_is_not_converted_is_named(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values) for name, values in tensors.items()}
    name = "model.layers.0.self_attn.k_proj.weight"
    saved[name] = saved[name].to(torch.int16)
    save_file(saved, source / "model.safetensors")
    refuse(tmp_path, source, UnsupportedError, f"{re.escape(name)} is in i16")


def test_experts_of_one_layer_that_differ_are_refused(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values) for name, values in tensors.items()}
    for name in [name for name in saved if "layers.1.block_sparse_moe.experts.3." in name]:
        saved[name] = saved[name].half()
    save_file(saved, source / "model.safetensors")
    refuse(tmp_path, source, UnsupportedError, "Expert 3 of MoE layer 1 differs")


def test_a_layer_in_another_codec_gets_a_bank_of_its_own(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values) for name, values in tensors.items()}
    for name in [name for name in saved if "layers.0.block_sparse_moe.experts." in name and "w2" in name]:
        saved[name] = saved[name].half()
    save_file(saved, source / "model.safetensors")
    first, second = run(source, tmp_path / "dest").banks
    assert (first.layers, second.layers) == ((0,), (1,))
    assert [field.shape.codec for field in first.fields] == ["f32", "f16"]
    assert [field.shape.codec for field in second.fields] == ["f32", "f32"]


def test_a_norm_or_a_bias_that_is_no_number_is_named(tmp_path: Path, tensors: dict) -> None:
    name = "model.layers.1.input_layernorm.weight"
    source = write_folder(tmp_path / "source", tensors | {name: tensors[name] * np.float32("nan")})
    with pytest.raises(CorruptFileError, match=re.escape(name)):
        run(source, tmp_path / "dest")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
def test_a_weight_that_is_no_finite_number_is_named(
    tmp_path: Path, tensors: dict, kind: torch.dtype, bad: float
) -> None:
    """In the first, a middle and the last place of a row; the largest finite value is none."""
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    saved = {key: torch.from_numpy(values).to(kind) for key, values in tensors.items()}
    source = write_folder(tmp_path / "source", {})
    spoilt = saved[name].clone()
    spoilt[:, 0] = torch.finfo(kind).max
    save_file(saved | {name: spoilt}, source / "model.safetensors")
    run(source, tmp_path / "finite")
    for row, col in ((0, 0), (7, 41), (len(spoilt) - 1, -1)):
        spoilt = saved[name].clone()
        spoilt[row, col] = bad
        save_file(saved | {name: spoilt}, source / "model.safetensors")
        expected = rf"tensor {re.escape(name)} cannot be used: row {row} has a weight that is no finite number"
        with pytest.raises(CorruptFileError, match=expected):
            run(source, tmp_path / "dest")
        shutil.rmtree(next(tmp_path.glob("dest*")))


def test_a_scale_of_a_gguf_file_that_is_no_finite_number_is_named(tmp_path: Path, tensors: dict) -> None:
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q4_0)
    found = next(tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == "blk.1.attn_q.weight")
    with source.open("r+b") as file:
        file.seek(found.data_offset + 3 * found.data.shape[1] + 18)
        file.write(np.float16("nan").tobytes())
    expected = r"tensor model\.layers\.1\.self_attn\.q_proj\.weight cannot be used: row \d+, block 1 has a scale"
    with pytest.raises(CorruptFileError, match=expected):
        run(source, tmp_path / "dest")


def test_too_small_a_disk_is_noticed_before_the_first_byte(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    real = space.shutil.disk_usage

    def nearly_full(path: Path) -> Any:
        return real(path)._replace(free=1000)

    monkeypatch.setattr(space.shutil, "disk_usage", nearly_full)
    refuse(tmp_path, source, DoesNotFitError, r"needs .* and 1000 B are free")


def test_a_disk_that_fills_up_keeps_what_is_there_and_says_so(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    real_write = Partial.write
    written = 0

    def write_until_full(self: Partial, file: str, offset: int, data: Any) -> None:
        nonlocal written
        written += len(data)
        if written > 250_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_write(self, file, offset, data)

    monkeypatch.setattr(Partial, "write", write_until_full)
    with pytest.raises(DoesNotFitError, match=r"full.*go on from there"):
        run(source, tmp_path / "dest")
    monkeypatch.undo()
    assert resumed_at(source, tmp_path / "dest") > 150_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_real_disk_that_fills_up(tmp_path: Path, source: Path, small_disk: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.files.conversion.convert.require_space", lambda path, needed: None)
    with pytest.raises(DoesNotFitError, match="full"):
        run(source, small_disk / "dest")
    assert (small_disk / "dest.partial" / "journal").stat().st_size > 0
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    run(source, small_disk / "dest")
    run(source, tmp_path / "whole")
    assert contents(small_disk / "dest") == contents(tmp_path / "whole")


def test_a_source_that_shrinks_meanwhile_is_named(tmp_path: Path, source: Path) -> None:
    weights = source / "model.safetensors"

    def shrink(done: int, total: int) -> None:
        if done > 100_000:
            os.truncate(weights, 50_000)

    with pytest.raises(CorruptFileError, match=r"model\.safetensors became short.*it had \d+ bytes") as caught:
        run(source, tmp_path / "dest", progress=shrink)
    assert "rm -r" in caught.value.remedy


def test_a_disk_that_fails_is_named(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    def fail(self: Partial, file: str, offset: int, data: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Partial, "write", fail)
    with pytest.raises(FreetokenError, match=r"dest\.partial cannot be written: Input/output error"):
        run(source, tmp_path / "dest")


@pytest.mark.parametrize(("kind", "scale"), [("MXFP4", b"\xff"), ("Q4_0", b"\x00\x7c"), ("Q8_0", b"\x01\xfe")])
def test_a_scale_that_is_no_number_is_refused_with_the_tensors_name(
    tmp_path: Path, tensors: dict, kind: str, scale: bytes
) -> None:
    path = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType[kind])
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up_exps.weight")
    with path.open("r+b") as file:
        file.seek(tensor.data_offset)
        file.write(scale)
    named = r"m\.gguf: the tensor model\.layers\.1\..*experts\.0\.w3\.weight cannot be used: row 0, block 0 has a scale"
    with pytest.raises(CorruptFileError, match=named) as caught:
        run(path, tmp_path / "dest")
    assert "Fetch the file again" in caught.value.remedy
    assert f"rm -r {tmp_path / 'dest.partial'}" in caught.value.remedy
    with pytest.raises(CorruptFileError, match=named):  # and again, as long as it is so
        run(path, tmp_path / "dest")
    write_mixtral_gguf(path, tensors, gguf.GGMLQuantizationType[kind])
    with pytest.raises(UsageError, match="another source"):
        run(path, tmp_path / "dest")
    run(path, tmp_path / "dest", force=True)
    assert verify(tmp_path / "dest", silent).problems == ()


def test_the_row_of_a_bad_scale_is_the_tensors_own(tmp_path: Path, tensors: dict, monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.files.conversion.packing.CHUNK_BYTES", 1)  # sixteen rows at a time
    path = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_down_exps.weight")
    row_bytes = 96 // 32 * 34
    with path.open("r+b") as file:
        file.seek(tensor.data_offset + (64 * 2 + 41) * row_bytes + 34)
        file.write(b"\x00\x7c")
    with pytest.raises(CorruptFileError, match=r"layers\.0\..*experts\.2\.w2\.weight cannot be used: row 41, block 1 "):
        run(path, tmp_path / "dest")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        run(tmp_path / "absent", tmp_path / "dest")


# --- every refusal says what to do -----------------------------------------------------------------------------------

FILES = Path(space.__file__).parent
# whoever opens a checkpoint or a model with these adds a remedy; the catalogue comes with freetoken
WITHOUT_REMEDY = {"gguf_checkpoint", "gguf_config", "gguf_header", "safetensors_header", "untrusted"} | {
    "catalogue", "ftw", "manifest_reader", "target",
}  # fmt: skip


def refusals(path: Path) -> Iterator[ast.Call]:
    """Every error of ours that a file makes."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FreetokenError)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            yield node


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.py") if path.stem not in WITHOUT_REMEDY))
def test_every_refusal_of_a_conversion_has_a_remedy(name: str) -> None:
    lacking = [ast.unparse(call) for call in refusals(FILES / f"{name}.py") if len(call.args) < 2]
    assert lacking == []


def test_experts_that_differ_are_told_apart_by_shape(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values) for name, values in tensors.items()}
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    saved[name] = saved[name].half()
    save_file(saved, source / "model.safetensors")
    said = r"differs.*gate_up f32 96 x 64, down f16 64 x 96; .*, down f32 64 x 96\. Use"
    refuse(tmp_path, source, UnsupportedError, said)


def test_the_command_that_removes_what_is_unfinished_bears_a_space(tmp_path: Path, source: Path) -> None:
    dest = tmp_path / "my models" / "dest"
    by_shell = Partial(dest, {"journal": 3}, force=False)
    assert shlex.split(by_shell.removal) == ["rm", "-r", str(by_shell.folder)]
    by_shell.__exit__(None, None, None)
    by_name = Partial(dest, {"journal": 3}, force=False, removal="freetoken rm dest")
    assert by_name.removal == "freetoken rm dest"
    by_name.__exit__(None, None, None)
    dest.mkdir()
    beside_a_model = Partial(dest, {"journal": 3}, force=False, removal="freetoken rm dest")
    assert beside_a_model.removal == by_shell.removal
    beside_a_model.__exit__(None, None, None)
