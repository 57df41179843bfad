"""Conversion: what comes out is what went in, whatever interrupts it; bad input is refused before writing."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.base.errors import (
    BusyError,
    CorruptFileError,
    DoesNotFitError,
    FreetokenError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from engine.files import space
from engine.files.convert import convert
from engine.files.ftw import Ftw, open_model
from engine.files.locks import lock_folder
from engine.files.partial import Partial
from engine.files.space import require_space
from engine.files.stream import Pace
from engine.files.verify import verify
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder, write_mixtral_gguf, write_sharded_folder
from tests.unit.gguf_twin import write_gguf
from tests.unit.numpy_packer import pack_matrix

EAGER = Pace(save_bytes=0, save_seconds=0.0)  # every item is safe as soon as it is written


class Interrupted(Exception):
    """Stands for whatever ends a conversion from outside."""


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(metadata["tokenizer.ggml.tokens"]))


def run(source: Path, dest: Path, **options: Any) -> Ftw:
    convert(source, dest, **{"write_tokenizer": write_tokenizer, "pace": EAGER} | options)
    return open_model(dest)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return mixtral_tensors()


@pytest.fixture
def source(tmp_path: Path, tensors: dict) -> Path:
    return write_folder(tmp_path / "source", tensors)


def expected_record(raw: Mapping[str, tuple[str, np.ndarray]], layer: int, expert: int, record_bytes: int) -> bytes:
    """A mixtral record from codec and raw rows by name, as docs/ftw.md describes it."""
    prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
    packed = {}
    for name in ("w1", "w2", "w3"):
        codec, rows = raw[f"{prefix}{name}.weight"]
        packed[name] = pack_matrix(codec, rows, MIXTRAL["intermediate_size" if name == "w2" else "hidden_size"])
    turns = np.stack([packed["w1"], packed["w3"]], axis=1)
    return (turns.tobytes() + packed["w2"].tobytes()).ljust(record_bytes, b"\0")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "codec"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_safetensors_keep_every_bit(tmp_path: Path, tensors: dict, dtype: torch.dtype, codec: str) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values).to(dtype) for name, values in tensors.items()}
    save_file(saved, source / "model.safetensors")
    model = run(source, tmp_path / "dest")
    raw = {name: (codec, t.reshape(-1, t.shape[-1]).view(torch.uint8).numpy()) for name, t in saved.items()}
    for index in range(model.banks[0].count):
        record = bytes(model.banks[0].record(index))
        assert record == expected_record(raw, *divmod(index, 4), model.banks[0].record_bytes)
    query = model.dense["layers.1.attn.q"]
    packed = pack_matrix(codec, raw["model.layers.1.self_attn.q_proj.weight"][1], 64)
    assert (query.codec, bytes(query.data)) == (codec, packed.tobytes())
    norm = np.frombuffer(model.dense["layers.0.attn_norm"].data, np.float32)
    assert (norm == saved["model.layers.0.input_layernorm.weight"].float().numpy()).all()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "MXFP4"])
def test_gguf_keeps_every_bit(tmp_path: Path, tensors: dict, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    model = run(write_mixtral_gguf(tmp_path / "m.gguf", tensors, quantization), tmp_path / "dest")
    raw = {
        name: (kind.lower(), gguf.quantize(values, quantization).view(np.uint8).reshape(len(values), -1))
        for name, values in tensors.items()
        if values.ndim == 2
    }
    for index in range(model.banks[0].count):
        record = bytes(model.banks[0].record(index))
        assert record == expected_record(raw, *divmod(index, 4), model.banks[0].record_bytes)
    assert json.loads((tmp_path / "dest" / "tokenizer.json").read_text())[3] == "token3"


SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "tie_word_embeddings": False, "head_dim": 16,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "llama biased": {"attention_bias": True},
    "llama tied": {"tie_word_embeddings": True},
    "mixtral": {**LOCAL_EXPERTS, "sliding_window": None},
    "qwen2": {"rope_parameters": YARN},
    "qwen2_moe": {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "qwen3": {},
    "qwen3_moe": {**EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "olmoe": EXPERTS,
    "granitemoe": {**LOCAL_EXPERTS, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    "gpt_oss": {**LOCAL_EXPERTS, "sliding_window": 12, "rope_parameters": {**YARN, "truncate": False}},
}


@pytest.mark.parametrize("case", FAMILIES)
def test_safetensors_and_gguf_of_one_model_give_the_same_files(tmp_path: Path, case: str) -> None:
    config = AutoConfig.for_model(case.split()[0], **SIZES | FAMILIES[case])
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    model.save_pretrained(tmp_path / "hf")
    saved_config = json.loads((tmp_path / "hf" / "config.json").read_text())
    from_folder = run(tmp_path / "hf", tmp_path / "a")
    source = write_gguf(tmp_path / "hf", saved_config, tmp_path / "m.gguf")
    convert(source, tmp_path / "b", write_tokenizer=lambda metadata, folder: None)
    from_file = open_model(tmp_path / "b")
    assert _without(from_file.spec, "eos_ids") == _without(from_folder.spec, "eos_ids")
    assert from_file.dense.keys() == from_folder.dense.keys()
    for name, tensor in from_folder.dense.items():
        assert from_file.dense[name].data == tensor.data, name
    for bank, other in zip(from_folder.banks, from_file.banks, strict=True):
        assert bank.fields == other.fields
        assert bank.shards == other.shards


def _without(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != name}


def test_shards_or_one_file_make_no_difference(tmp_path: Path, tensors: dict, source: Path) -> None:
    run(source, tmp_path / "a")
    run(write_sharded_folder(tmp_path / "sharded", tensors, 3), tmp_path / "b")
    for name in ("dense.safetensors", "experts-0-0.bank"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_companions_go_along_and_the_result_verifies(tmp_path: Path, source: Path) -> None:
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "generation_config.json").write_text('{"temperature": 0.6}')
    model = run(source, tmp_path / "dest", sampling={"temperature": 0.1})
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json"):
        assert (model.folder / name).read_bytes() == (source / name).read_bytes()
        assert name in model.manifest.files
    assert json.loads((model.folder / "config.json").read_text()) == MIXTRAL
    assert verify(model.folder, lambda done, total: None).problems == ()


def test_sampling_is_noted_where_the_source_says_nothing(tmp_path: Path, source: Path) -> None:
    model = run(source, tmp_path / "dest", sampling={"temperature": 0.1})
    assert json.loads((model.folder / "generation_config.json").read_text()) == {"temperature": 0.1}


def test_progress_reaches_the_total(tmp_path: Path, source: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(source, tmp_path / "dest", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    weights = [path for path in (tmp_path / "dest").iterdir() if path.suffix in (".bank", ".safetensors")]
    assert seen[-1][1] == sum(path.stat().st_size for path in weights)


# --- interruptions ---------------------------------------------------------------------------------------------------


class InterruptAt:
    """A progress that ends the conversion at byte `limit`; `first` is the first number it was told."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.first = -1

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done
        if done >= self.limit:
            raise Interrupted


def interrupt(source: Path, dest: Path, limit: int, **options: Any) -> int:
    """Converts until byte `limit` is written; returns where it began."""
    progress = InterruptAt(limit)
    with pytest.raises(Interrupted):
        run(source, dest, progress=progress, **options)
    assert not dest.exists()
    return progress.first


def resumed_at(source: Path, dest: Path, **options: Any) -> int:
    """Converts to the end; returns where it began."""
    progress = InterruptAt(sys.maxsize)
    run(source, dest, progress=progress, **options)
    return progress.first


def test_an_interrupted_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    dest = tmp_path / "dest"
    starts = [interrupt(source, dest, total * part // 13) for part in range(1, 12)]
    assert starts == sorted(starts)
    assert starts[-1] > total // 2  # it did not begin again
    assert resumed_at(source, dest) > starts[-1]
    assert contents(dest) == contents(tmp_path / "whole")
    assert not dest.with_name("dest.partial").exists()


def test_an_interruption_while_the_tokenizer_is_written_costs_nothing(tmp_path: Path, tensors: dict) -> None:
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)

    def stop(metadata: Mapping[str, Any], folder: Path) -> None:
        write_tokenizer({"tokenizer.ggml.tokens": ["something else"]}, folder)
        raise Interrupted

    with pytest.raises(Interrupted):
        run(source, tmp_path / "dest", write_tokenizer=stop)
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    assert resumed_at(source, tmp_path / "dest") == total
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("survivors", [0, 1])
def test_an_interruption_at_the_last_renames_costs_nothing(
    tmp_path: Path, source: Path, monkeypatch: Any, survivors: int
) -> None:
    run(write_folder(tmp_path / "other", mixtral_tensors(seed=1)), tmp_path / "dest")
    real_rename = Path.rename
    done = []

    def rename(self: Path, target: Path) -> Path:
        if len(done) == survivors:
            raise Interrupted
        done.append(target)
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(Interrupted):
        run(source, tmp_path / "dest", force=True)
    monkeypatch.undo()
    run(source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    assert resumed_at(source, tmp_path / "dest", force=True) == total
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "other", "source", "whole"]


def test_a_journal_that_was_cut_in_mid_line_is_used_up_to_there(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "whole")
    interrupt(source, tmp_path / "dest", 150_000)
    journal = tmp_path / "dest.partial" / "journal"
    size = journal.stat().st_size
    os.truncate(journal, size - 10)
    run(source, tmp_path / "dest")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("content", ["", "{", "\n\n"])
def test_a_journal_without_a_beginning_starts_again(tmp_path: Path, source: Path, content: str) -> None:
    partial = tmp_path / "dest.partial"
    partial.mkdir()
    (partial / "journal").write_text(content)
    (partial / "experts-0-0.bank").write_bytes(b"left over" * 100_000)
    (partial / "stray").write_text("left over")
    if content == "\n\n":
        with pytest.raises(UsageError, match="another source"):
            run(source, tmp_path / "dest")
    run(source, tmp_path / "dest", force=True)
    run(source, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_a_partial_whose_bytes_are_not_the_journals_is_refused(tmp_path: Path, source: Path) -> None:
    interrupt(source, tmp_path / "dest", 300_000)
    bank = tmp_path / "dest.partial" / "experts-0-0.bank"
    os.truncate(bank, 4096)
    with pytest.raises(CorruptFileError, match=r"dest\.partial are not what its journal says"):
        run(source, tmp_path / "dest")


def test_another_source_or_setting_is_not_mixed_in(tmp_path: Path, source: Path, tensors: dict) -> None:
    interrupt(source, tmp_path / "dest", 150_000)
    kept = contents(tmp_path / "dest.partial")
    other = write_folder(tmp_path / "other", mixtral_tensors(seed=1))
    with pytest.raises(UsageError, match="another source or with other settings") as caught:
        run(other, tmp_path / "dest")
    assert "--force" in str(caught.value)
    with pytest.raises(UsageError, match="another source or with other settings"):
        run(source, tmp_path / "dest", sampling={"temperature": 0.5})
    assert contents(tmp_path / "dest.partial") == kept
    run(other, tmp_path / "dest", force=True)
    run(other, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_force_goes_on_with_its_own_unfinished_work(tmp_path: Path, source: Path) -> None:
    interrupt(source, tmp_path / "dest", 200_000, force=True)
    assert resumed_at(source, tmp_path / "dest", force=True) > 100_000


def test_a_second_conversion_of_the_same_model_is_told_to_wait(tmp_path: Path, source: Path) -> None:
    lock = lock_folder(tmp_path / "dest.partial", "busy")
    with pytest.raises(BusyError, match=r"dest\.partial"):
        run(source, tmp_path / "dest")
    os.close(lock)
    run(source, tmp_path / "dest")


def test_a_conversion_that_was_overtaken_says_so_at_once(tmp_path: Path, source: Path, monkeypatch: Any) -> None:
    real_space = require_space

    def be_overtaken(path: Path, needed: int) -> None:
        monkeypatch.setattr("engine.files.convert.require_space", real_space)
        run(source, tmp_path / "dest")

    monkeypatch.setattr("engine.files.convert.require_space", be_overtaken)
    with pytest.raises(UsageError, match="is there already"):
        run(source, tmp_path / "dest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source"]


def test_the_lock_is_not_fooled_by_a_folder_that_was_renamed_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    real_open = os.open
    renamed = []

    def open_and_rename(path: Any, *rest: Any, **options: Any) -> int:
        descriptor = real_open(path, *rest, **options)
        if not renamed:
            renamed.append(Path(path).rename(tmp_path / "finished"))
        return descriptor

    monkeypatch.setattr(os, "open", open_and_rename)
    descriptor = lock_folder(tmp_path / "dest.partial", "busy")
    assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "dest.partial"))
    os.close(descriptor)


def test_what_is_there_already_is_kept_unless_forced(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "dest")
    before = contents(tmp_path / "dest")
    with pytest.raises(UsageError, match="is there already"):
        run(source, tmp_path / "dest")
    other = write_folder(tmp_path / "other", mixtral_tensors(seed=1))
    opened = open_model(tmp_path / "dest")
    run(other, tmp_path / "dest", force=True)
    assert contents(tmp_path / "dest") != before
    assert bytes(opened.banks[0].record(0)) == before["experts-0-0.bank"][: opened.banks[0].record_bytes]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "other", "source"]


def test_force_never_removes_what_is_no_model(tmp_path: Path, source: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "important.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("letters", "file"):
        with pytest.raises(UsageError, match="no converted model"):
            run(source, tmp_path / name, force=True)
    assert (tmp_path / "letters" / "important.txt").read_text() == "dear"


def test_a_destination_below_a_file_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(FreetokenError, match=r"file/dest\.partial cannot be made"):
        run(source, tmp_path / "file" / "dest")


def test_the_source_is_never_touched(tmp_path: Path, source: Path) -> None:
    for path in source.iterdir():
        path.chmod(0o444)
    source.chmod(0o555)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()}
    run(source, tmp_path / "dest")
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()} == before


# --- refusals --------------------------------------------------------------------------------------------------------


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
    saved[name] = saved[name].to(torch.float8_e4m3fn)
    save_file(saved, source / "model.safetensors")
    refuse(tmp_path, source, UnsupportedError, f"{re.escape(name)} is in f8_e4m3")


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
    monkeypatch.setattr("engine.files.convert.require_space", lambda path, needed: None)
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

    with pytest.raises(CorruptFileError, match=r"model\.safetensors became short"):
        run(source, tmp_path / "dest", progress=shrink)


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
    with pytest.raises(CorruptFileError, match=r"layers\.1\..*experts\.0\.w3\.weight cannot be used"):
        run(path, tmp_path / "dest")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        run(tmp_path / "absent", tmp_path / "dest")
