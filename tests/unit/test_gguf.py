"""GGUF files: what we read equals what the gguf package wrote and reads; damaged files get a sentence."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.source_file import LocalFile
from engine.files.sources.gguf.checkpoint import open_gguf
from engine.files.sources.gguf.header import READ_TYPES, TYPE_NAMES, read_gguf_header
from engine.files.sources.gguf.undo import head_order
from engine.files.sources.tensors import MemoryTensor, reordered_blocks, row_count
from tests.bench.kquants import quantize
from tests.hostile.gguf_files import GGUF_FILES
from tests.unit.checkpoints import (
    MIXTRAL,
    WIDE_MIXTRAL,
    mixtral_tensors,
    permuted_for_gguf,
    random_values,
    write_mixtral_gguf,
)
from tests.unit.quantised import values

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "IQ4_NL")
WIDE_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return mixtral_tensors()


@pytest.fixture
def small_file(tmp_path: Path, tensors: dict[str, np.ndarray]) -> Path:
    return write_mixtral_gguf(tmp_path / "small.gguf", tensors, gguf.GGMLQuantizationType.Q4_0)


@pytest.mark.parametrize("type_name", [*TYPES, *WIDE_TYPES])
def test_tensors_are_the_blocks_that_were_written(tmp_path: Path, tensors: dict, type_name: str) -> None:
    kind, config = gguf.GGMLQuantizationType[type_name], MIXTRAL
    if type_name in WIDE_TYPES:
        config, tensors = WIDE_MIXTRAL, mixtral_tensors(WIDE_MIXTRAL)
    checkpoint = open_gguf(write_mixtral_gguf(tmp_path / "m.gguf", tensors, kind, config))
    assert checkpoint.tensors.keys() == tensors.keys()
    for name, tensor in checkpoint.tensors.items():
        is_matrix = len(tensor.shape) == 2 and "moe.gate" not in name
        assert tensor.form == (type_name.lower() if is_matrix else "f32")
        raw = tensor.read(0, row_count(tensor))
        expected = quantize(tensors[name], kind) if is_matrix else tensors[name]
        assert raw.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("type_name", [*TYPES, *WIDE_TYPES])
def test_values_are_those_that_the_gguf_package_reads(tmp_path: Path, type_name: str) -> None:
    def add_output(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("output.weight", stored, raw_dtype=kind)

    kind = gguf.GGMLQuantizationType[type_name]
    stored = quantize(random_values((24, 512), 3), kind)
    tensor = open_gguf(write_llama(tmp_path / "m.gguf", change=add_output)).tensors["lm_head.weight"]
    # a minimum is taken off by one rounding with fma here, by two there
    np.testing.assert_allclose(values(tensor).numpy(), gguf.dequantize(stored, kind), rtol=0, atol=1e-6)


def test_types_have_the_names_that_the_gguf_package_gives_them() -> None:
    assert {kind.value: kind.name.lower() for kind in gguf.GGMLQuantizationType} == TYPE_NAMES


def test_a_row_range_equals_that_part_of_the_whole(small_file: Path) -> None:
    tensor = open_gguf(small_file).tensors["model.layers.1.self_attn.q_proj.weight"]
    whole = tensor.read(0, 64)
    for start, stop in ((0, 1), (5, 23), (15, 17), (63, 64)):
        assert (tensor.read(start, stop) == whole[start:stop]).all()


def test_the_header_agrees_with_the_gguf_package(small_file: Path) -> None:
    ours, theirs = read_gguf_header(LocalFile(small_file)), gguf.GGUFReader(small_file)
    assert {t.name: (t.start, t.form, t.shape) for t in ours.tensors} == {
        t.name: (t.data_offset, t.tensor_type.name.lower(), tuple(reversed(t.shape.tolist()))) for t in theirs.tensors
    }
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields


def test_the_config_is_that_of_the_hugging_face_model(small_file: Path) -> None:
    config = open_gguf(small_file).config
    assert {name: config[name] for name in MIXTRAL} == MIXTRAL


def test_a_head_that_is_not_there_is_tied(tmp_path: Path, tensors: dict) -> None:
    tied = {name: values for name, values in tensors.items() if name != "lm_head.weight"}
    checkpoint = open_gguf(write_mixtral_gguf(tmp_path / "m.gguf", tied, gguf.GGMLQuantizationType.F32))
    assert checkpoint.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in checkpoint.tensors


def test_head_order_undoes_the_permutation_of_llama_files() -> None:
    rows = random_values((48, 3), 0)
    permuted = permuted_for_gguf(rows, 4)
    assert (permuted != rows).any()
    assert (permuted[head_order(48, 4, Path("x"))] == rows).all()


def test_metadata_of_the_tokenizer_is_handed_on(small_file: Path) -> None:
    metadata = open_gguf(small_file).metadata
    assert metadata is not None
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    assert metadata["tokenizer.ggml.tokens"][5] == "token5"
    assert all(key.startswith("tokenizer.") for key in metadata)


def write_llama(
    path: Path, architecture: str = "llama", change: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """The smallest dense file: an embedding, and what `change` adds."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(32)
    writer.add_block_count(0)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(128)
    writer.add_tensor("token_embd.weight", random_values((8, 32), 0))
    if change:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("type_name", sorted(set(TYPE_NAMES.values()) - set(READ_TYPES)))
def test_a_type_that_is_not_read_is_refused_with_those_that_are(tmp_path: Path, type_name: str) -> None:
    kind = gguf.GGMLQuantizationType[type_name.upper()]
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]

    def add_output(writer: gguf.GGUFWriter) -> None:
        blocks = np.zeros((8, 256 // per_block * block_bytes), np.uint8)
        writer.add_tensor("output.weight", blocks, raw_dtype=kind)

    with pytest.raises(UnsupportedError, match=f"output.weight' is in {type_name},") as caught:
        open_gguf(write_llama(tmp_path / "m.gguf", change=add_output))
    assert "--file, such as Q4_K_M, Q3_K_M or Q2_K" in caught.value.remedy
    assert "q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl" in caught.value.remedy


def test_columns_do_not_move_inside_a_block() -> None:
    tensor = MemoryTensor("q4_k", (2, 512), np.zeros((2, 288), np.uint8))
    assert reordered_blocks("w", tensor, np.array([1, 0]), 256).read(0, 2).shape == (2, 288)
    with pytest.raises(UnsupportedError, match=r"columns of w .* runs of 32, which q4_k"):
        reordered_blocks("w", tensor, np.arange(16), 32)


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'starcoder'.*qwen3moe"):
        open_gguf(write_llama(tmp_path / "m.gguf", "starcoder"))


def test_a_tensor_that_the_architecture_does_not_have_is_named(tmp_path: Path) -> None:
    def add_odd(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.ssm_conv1d.weight", random_values((4, 4), 0))

    with pytest.raises(UnsupportedError, match="ssm_conv1d"):
        open_gguf(write_llama(tmp_path / "m.gguf", change=add_odd))


def llama3_factors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """The divisors of frequencies of llama-3 models, by the three cases of transformers' own loop."""
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("spoil", [0.0, 0.1])
def test_llama3_positions_are_recognised_and_others_refused(tmp_path: Path, spoil: float) -> None:
    def add_factors(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(500000.0)
        writer.add_key_length(64)
        factors = llama3_factors(500000.0, 64, 32.0)
        factors[18] *= 1 + spoil
        writer.add_tensor("rope_freqs.weight", factors)

    path = write_llama(tmp_path / "m.gguf", change=add_factors)
    if spoil:
        with pytest.raises(UnsupportedError, match="rope_freqs"):
            open_gguf(path)
    else:
        assert open_gguf(path).config["rope_scaling"] == {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }


def test_a_split_file_is_read_whole_from_any_part(tmp_path: Path, tensors: dict) -> None:
    whole = open_gguf(write_mixtral_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType.F16))
    split = gguf.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=9)
    for key, field in gguf.GGUFReader(tmp_path / "m.gguf").fields.items():
        if not key.startswith(("GGUF.", "general.")):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            split.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        split.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    split.write_header_to_file()
    split.write_kv_data_to_file()
    split.write_tensors_to_file()
    split.close()
    parts = sorted(tmp_path.glob("s-*.gguf"))
    assert len(parts) > 2
    for part in (parts[0], parts[-1]):
        checkpoint = open_gguf(part)
        assert checkpoint.name == "s"
        for name, tensor in checkpoint.tensors.items():
            count = row_count(tensor)
            assert (tensor.read(0, count) == whole.tensors[name].read(0, count)).all()
    parts[1].unlink()
    with pytest.raises(NotFoundError, match=parts[1].name):
        open_gguf(parts[0])


# --- hostile files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GGUF_FILES)
def test_a_hostile_file_gets_a_sentence_with_its_name(tmp_path: Path, name: str) -> None:
    content, expected = GGUF_FILES[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises((CorruptFileError, UnsupportedError), match=expected) as caught:
        open_gguf(path)
    assert "hostile.gguf" in str(caught.value)


def test_every_truncation_gets_a_sentence(small_file: Path) -> None:
    content = small_file.read_bytes()
    data_start = min(tensor.start for tensor in read_gguf_header(LocalFile(small_file)).tensors)
    for size in [*range(0, data_start, 37), data_start, len(content) - 1]:
        small_file.write_bytes(content[:size])
        with pytest.raises(CorruptFileError, match=r"small\.gguf"):
            read_gguf_header(LocalFile(small_file))


@pytest.mark.parametrize("layers", [3, 2**31 - 1])
def test_a_count_of_layers_costs_no_more_than_the_file_holds(tmp_path: Path, tensors: dict, layers: int) -> None:
    path = tmp_path / "counts.gguf"
    write_mixtral_gguf(path, tensors, gguf.GGMLQuantizationType.F32)
    content = path.read_bytes()
    key = b"llama.block_count"
    at = content.index(key) + len(key) + 4
    assert int.from_bytes(content[at : at + 4], "little") == 2
    path.write_bytes(content[:at] + layers.to_bytes(4, "little") + content[at + 4 :])
    began = time.process_time()
    with contextlib.suppress(CorruptFileError):
        open_gguf(path).close()
    assert time.process_time() - began < 5.0


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_header_never_crashes(small_file: Path, data: st.DataObject) -> None:
    content = bytearray(small_file.read_bytes())
    data_start = min(tensor.start for tensor in read_gguf_header(LocalFile(small_file)).tensors)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, data_start - 1))] = data.draw(st.integers(0, 255))
    damaged = small_file.with_name("damaged.gguf")
    damaged.write_bytes(content)
    with contextlib.suppress(CorruptFileError, UnsupportedError):
        open_gguf(damaged).close()


@pytest.mark.parametrize("element", ["a string", "strings", "numbers"])
def test_a_header_that_never_ends_is_not_read_into_memory(tmp_path: Path, element: str) -> None:
    """A file as large as a model that claims to be all header; it is sparse, so it takes no disk."""
    huge = 200 << 30
    value = {
        "a string": struct.pack("<IQ", 8, huge),
        "strings": struct.pack("<IIQ", 9, 8, 1 << 30) + struct.pack("<Q", huge),
        "numbers": struct.pack("<IIQ", 9, 0, huge),
    }[element]
    path = tmp_path / "huge.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + value)
    os.truncate(path, huge + 1000)
    file = LocalFile(path)
    with contextlib.closing(file), pytest.raises(CorruptFileError, match="header of more than 256 MiB"):
        read_gguf_header(file)


def test_a_file_of_no_parts_is_a_whole_one(tmp_path: Path, small_file: Path) -> None:
    path = small_file.rename(tmp_path / "tiny-00001-of-00000.gguf")
    assert open_gguf(path).files[0].path == path
