"""Experts in another codec on request: what is written, what is said of it, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine import _native
from engine.base.errors import CorruptFileError, UnsupportedError, UsageError
from engine.files.codecs import CODECS
from engine.files.conversion.convert import convert
from engine.files.conversion.converted import Converted, Loss, Requantised
from engine.files.conversion.job import Recipe
from engine.files.conversion.journal import is_journal_line, journal_line, read_losses
from engine.files.conversion.requantise import ENCODED
from engine.files.ftw.opening import Ftw, open_model
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors, write_folder, write_mixtral_gguf
from tests.unit.converting import EAGER, InterruptAt, Interrupted, contents, run, write_tokenizer

Values = dict[str, np.ndarray]


def convert_to(codec: str | None, source: Path, dest: Path, **options: Any) -> Converted:
    return convert(source, dest, write_tokenizer=write_tokenizer, recipe=Recipe(expert_codec=codec), **options)


def expert_values(model: Ftw) -> Values:
    """The values of every expert tensor of a mixtral model, by the checkpoint's name of it."""
    values = {}
    for bank in model.banks:
        for place, layer in enumerate(bank.layers):
            for expert in range(bank.experts_per_layer):
                record = np.frombuffer(bank.record(place * bank.experts_per_layer + expert), np.uint8)
                for field in bank.fields:
                    names = {"gate_up": ("w1", "w3"), "down": ("w2",), "gate": ("w1",), "up": ("w3",)}[field.name]
                    shape = field.shape
                    tiles = record[field.offset : field.offset + field.stored_bytes]
                    tiles = tiles.reshape(-1, len(names), CODECS[shape.codec].tile_bytes(shape.cols))
                    for turn, name in enumerate(names):
                        packed = np.ascontiguousarray(tiles[:, turn]).reshape(-1)
                        tensor = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight"
                        values[tensor] = _native.unpack(shape.codec, shape.rows, shape.cols, packed)
    return values


def relative_error(found: Values, expected: Values) -> float:
    """sqrt(sum (w' - w)^2 / sum w^2) over all tensors."""
    error = sum(((found[name].astype(np.float64) - expected[name]) ** 2).sum() for name in found)
    return float(np.sqrt(error / sum((expected[name].astype(np.float64) ** 2).sum() for name in found)))


def check(converted: Converted, codec: str, kept: Values) -> None:
    """The converted model's experts are `kept` in `codec`, and what is said of them is so."""
    model = open_model(converted.folder)
    found = expert_values(model)
    requantised = converted.requantised
    assert requantised is not None
    assert (requantised.codec, requantised.tensors) == (codec, len(found))
    assert {field.shape.codec for bank in model.banks for field in bank.fields} == {codec}
    assert requantised.error == pytest.approx(relative_error(found, kept), rel=1e-4)
    errors = {name: relative_error({name: values}, kept) for name, values in found.items()}
    assert requantised.worst_error == pytest.approx(max(errors.values()), rel=1e-4)
    assert errors[requantised.worst_tensor] == max(errors.values())
    assert model.manifest.provenance["requantised"] == vars(requantised)
    assert model.manifest.provenance["settings"] == {"expert_codec": codec}


@pytest.mark.parametrize("codec", ENCODED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_values_are_put_into_a_codec(tmp_path: Path, tensors: dict, dtype: torch.dtype, codec: str) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values).to(dtype) for name, values in tensors.items()}
    save_file(saved, source / "model.safetensors")
    converted = convert_to(codec, source, tmp_path / "dest")
    check(converted, codec, {name: values.float().numpy() for name, values in saved.items()})
    assert 0.001 < converted.requantised.error < 0.15
    run(source, tmp_path / "plain")
    plain, model = open_model(tmp_path / "plain"), open_model(tmp_path / "dest")
    assert {name: bytes(tensor.data) for name, tensor in model.dense.items()} == {
        name: bytes(tensor.data) for name, tensor in plain.dense.items()
    }


@pytest.mark.parametrize(("kind", "codec"), list(itertools.product(["Q8_0", "Q4_0", "Q4_1", "MXFP4"], ENCODED)))
def test_any_codec_can_be_put_into_another(tmp_path: Path, tensors: dict, kind: str, codec: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    source = write_mixtral_gguf(tmp_path / "m.gguf", tensors, quantization)
    converted = convert_to(codec, source, tmp_path / "dest")
    if codec == kind.lower():
        assert converted.requantised == Requantised(codec, 0, 0.0, 0.0, "")
        assert converted.notes() == (f"The experts were in {codec} already: nothing was changed.",)
        run(source, tmp_path / "plain")
        assert (tmp_path / "dest" / "experts-0-0.bank").read_bytes() == (
            tmp_path / "plain" / "experts-0-0.bank"
        ).read_bytes()
        return
    kept = {
        name: gguf.dequantize(gguf.quantize(values, quantization), quantization)
        for name, values in tensors.items()
        if "experts" in name
    }
    check(converted, codec, kept)


def test_only_what_is_in_another_codec_is_touched(tmp_path: Path, tensors: dict) -> None:
    """Layer 0 is in q8_0 already; both layers are of one bank afterwards."""
    path = write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)
    mixed = mixed_gguf(path, tmp_path / "mixed.gguf")
    assert len(run(mixed, tmp_path / "plain").banks) == 2
    converted = convert_to("q8_0", mixed, tmp_path / "dest")
    assert converted.requantised is not None
    assert converted.requantised.tensors == 12
    assert "layers.1" in converted.requantised.worst_tensor
    plain, model = open_model(tmp_path / "plain"), open_model(tmp_path / "dest")
    assert len(model.banks) == 1
    for index in range(4):
        assert bytes(model.banks[0].record(index)) == bytes(plain.banks[0].record(index))


def mixed_gguf(path: Path, out: Path) -> Path:
    """The file again, with the experts of layer 1 in f32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.1.ffn") and tensor.name.endswith("_exps.weight"):
            writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_the_sentence_gives_the_errors(tmp_path: Path, source: Path) -> None:
    converted = convert_to("q8_0", source, tmp_path / "dest")
    assert converted.requantised is not None
    (note,) = converted.notes()
    assert f"{converted.requantised.error:.2%}" in note
    assert converted.requantised.worst_tensor in note
    assert convert_to(None, source, tmp_path / "plain") == Converted(tmp_path / "plain", {}, None)


@pytest.mark.parametrize("codec", ENCODED)
def test_an_interruption_changes_neither_bytes_nor_errors(tmp_path: Path, source: Path, codec: str) -> None:
    whole = convert_to(codec, source, tmp_path / "whole")
    total = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir() if path.suffix != ".json")
    for part in range(1, 9):
        with pytest.raises(Interrupted):
            convert_to(codec, source, tmp_path / "dest", pace=EAGER, progress=InterruptAt(total * part // 10))
    converted = convert_to(codec, source, tmp_path / "dest")
    assert converted.requantised == whole.requantised
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


def test_codecs_are_not_mixed_in_one_model(tmp_path: Path, source: Path) -> None:
    with pytest.raises(Interrupted):
        convert_to("mxfp4", source, tmp_path / "dest", pace=EAGER, progress=InterruptAt(50_000))
    for codec in ("nvfp4", None):
        with pytest.raises(UsageError, match="with other settings"):
            convert_to(codec, source, tmp_path / "dest")
    convert_to("nvfp4", source, tmp_path / "dest", force=True)
    convert_to("nvfp4", source, tmp_path / "whole")
    assert contents(tmp_path / "dest") == contents(tmp_path / "whole")


@pytest.mark.parametrize("codec", ENCODED)
def test_columns_that_are_not_whole_blocks_are_refused_with_numbers(tmp_path: Path, codec: str) -> None:
    config = MIXTRAL | {"intermediate_size": 80}
    source = write_folder(tmp_path / "source", mixtral_tensors(config), config)
    with pytest.raises(UnsupportedError, match=rf"experts\.0\.w2\.weight has rows of 80 values.*of 32, as {codec}"):
        convert_to(codec, source, tmp_path / "dest")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    run(source, tmp_path / "dest")  # in their own codec they are no trouble


@pytest.mark.parametrize("codec", ["q4_0", "int4", "", "MXFP4"])
def test_another_codec_is_refused_before_anything_is_written(tmp_path: Path, source: Path, codec: str) -> None:
    with pytest.raises(UsageError, match="cannot be put into") as caught:
        convert_to(codec, source, tmp_path / "dest")
    assert "mxfp4, nvfp4, q8_0" in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, tensors: dict, bad: float) -> None:
    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    values = tensors[name].copy()
    values[37, 50] = bad
    source = write_folder(tmp_path / "source", tensors | {name: values})
    with pytest.raises(CorruptFileError, match=r"experts\.2\.w3\.weight cannot be used: row 37 has a weight") as caught:
        convert_to("mxfp4", source, tmp_path / "dest")
    assert "model.safetensors" in caught.value.message


def test_fused_experts_are_named_with_their_number(tmp_path: Path, tensors: dict) -> None:
    config = MIXTRAL | {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]}
    moe = "block_sparse_moe."
    fused = {
        name.replace("gate.weight", "router.layer.weight"): t for name, t in tensors.items() if "expert" not in name
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}.{moe}"
        w1, w2, w3 = (np.stack([tensors[f"{prefix}experts.{e}.w{n}.weight"] for e in range(4)]) for n in (1, 2, 3))
        fused |= {f"{prefix}input_linear.weight": np.concatenate([w1, w3], 1), f"{prefix}output_linear.weight": w2}
    source = write_folder(tmp_path / "source", fused, config)
    converted = convert_to("mxfp4", source, tmp_path / "dest")
    assert converted.requantised is not None
    assert converted.requantised.tensors == 2 * 4 * 2  # gate and up of an expert lie in one tensor
    assert converted.requantised.worst_tensor.endswith(("_linear.weight[0]", "[1]", "[2]", "[3]"))


# --- arithmetic of the errors ----------------------------------------------------------------------------------------


def test_losses_add_up_in_any_order() -> None:
    losses = [Loss.of(f"t{number}", 10.0**-number, 3.0 + number) for number in range(12)]
    expected = Loss.total(losses)
    assert expected.tensors == 12
    assert (expected.worst_tensor, expected.worst) == ("t0", (1 / 3) ** 0.5)
    for order in itertools.islice(itertools.permutations(losses), 0, 100_000, 997):
        assert Loss.total(order) == expected
    assert Loss.total([Loss.total(losses[:5]), Loss.total(losses[5:])]).worst_tensor == "t0"
    assert Loss.total([]) == Loss()
    assert Loss.of("zeros", 0.0, 0.0).relative == 0.0


def test_a_journal_keeps_losses_to_the_last_bit() -> None:
    loss = Loss.of("a tensor", 0.1 + 0.2, 1e-300)
    line = journal_line("0" * 32, loss)
    assert is_journal_line(line)
    assert list(read_losses([line, "f" * 32])) == [loss]
    assert json.loads(line[32:])[4] == "a tensor"


@pytest.mark.parametrize(
    "line", ["", "0" * 31, "x" * 32, "0" * 32 + " [1]", "0" * 32 + " [1, 2.0, 3.0, 4.0, 5]", "0" * 40]
)
def test_other_lines_are_no_journals(line: str) -> None:
    assert not is_journal_line(line)
