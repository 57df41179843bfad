"""Sparse upcycling: the sparse model computes what the dense one does, out of the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from engine.base.errors import UnsupportedError, UsageError
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.ftw.opening import open_model
from engine.files.sources.opening import open_checkpoint
from engine.files.sources.safetensors.folder import open_folder
from engine.files.sources.tensors import SourceTensor, row_count
from engine.files.sources.upcycle import BLOCK, Upcycle, expert_order, upcycled
from tests.unit.checkpoints import LLAMA, llama_tensors, random_values, write_folder

HIDDEN, WIDTH = LLAMA["hidden_size"], LLAMA["intermediate_size"]
SETTINGS = Upcycle(experts=5, top_k=2, seed=3)


@pytest.fixture(scope="module")
def tensors() -> dict[str, npt.NDArray[np.float32]]:
    return llama_tensors()


@pytest.fixture
def source(tmp_path: Path, tensors: dict) -> Path:
    return write_folder(tmp_path / "source", tensors, LLAMA)


def values(tensor: SourceTensor) -> npt.NDArray[np.float64]:
    return tensor.read(0, row_count(tensor)).view(np.float32).astype(np.float64)


def gated_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    activated = gate @ x
    return down @ (activated / (1 + np.exp(-activated)) * (up @ x))


def test_every_expert_computes_what_the_dense_mlp_does(source: Path, tensors: dict) -> None:
    sparse = upcycled(open_folder(source), SETTINGS).tensors
    x = random_values((HIDDEN,), 99).astype(np.float64)
    for layer in range(2):
        names = [f"model.layers.{layer}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
        dense = gated_mlp(x, *(tensors[name].astype(np.float64) for name in names))
        for expert in range(SETTINGS.experts):
            prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
            own = gated_mlp(x, *(values(sparse[f"{prefix}{name}.weight"]) for name in ("w1", "w3", "w2")))
            np.testing.assert_allclose(own, dense, rtol=1e-12)


def test_experts_differ_so_that_mixed_up_tensors_would_show(source: Path, tensors: dict) -> None:
    sparse = upcycled(open_folder(source), Upcycle(experts=3)).tensors
    prefix = "model.layers.0.block_sparse_moe.experts."
    x = random_values((HIDDEN,), 99).astype(np.float64)
    first = [values(sparse[f"{prefix}0.{name}.weight"]) for name in ("w1", "w3", "w2")]
    other_down = values(sparse[f"{prefix}1.w2.weight"])
    right, wrong = gated_mlp(x, *first), gated_mlp(x, first[0], first[1], other_down)
    assert np.abs(right - wrong).max() > 0.1 * np.abs(right).max()


def test_orders_are_permutations_that_differ_and_never_change() -> None:
    orders = [expert_order(0, layer, expert, 48).tolist() for layer in range(2) for expert in range(8)]
    assert all(sorted(order) == list(range(48)) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    assert expert_order(0, 0, 0, 8).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "MXFP4"])
def test_quantised_blocks_move_whole(tmp_path: Path, tensors: dict, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(512)
    writer.add_tensor("token_embd.weight", random_values((96, HIDDEN), 0))
    dense = {}
    for short, long in (("ffn_gate", "gate"), ("ffn_up", "up"), ("ffn_down", "down")):
        dense[long] = gguf.quantize(tensors[f"model.layers.0.mlp.{long}_proj.weight"], quantization).view(np.uint8)
        writer.add_tensor(f"blk.0.{short}.weight", dense[long], raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sparse = upcycled(open_checkpoint(tmp_path / "m.gguf"), SETTINGS).tensors
    for expert in range(SETTINGS.experts):
        order = expert_order(SETTINGS.seed, 0, expert, WIDTH // BLOCK)
        prefix = f"model.layers.0.block_sparse_moe.experts.{expert}."
        for name, long in (("w1", "gate"), ("w3", "up")):
            moved = dense[long].reshape(WIDTH // BLOCK, BLOCK, -1)[order].reshape(WIDTH, -1)
            assert (sparse[f"{prefix}{name}.weight"].read(0, WIDTH) == moved).all()
        moved = dense["down"].reshape(HIDDEN, WIDTH // BLOCK, -1)[:, order].reshape(HIDDEN, -1)
        assert (sparse[f"{prefix}w2.weight"].read(0, HIDDEN) == moved).all()


def test_the_router_decides_clearly_and_uses_every_expert(source: Path) -> None:
    router = values(upcycled(open_folder(source), Upcycle()).tensors["model.layers.1.block_sparse_moe.gate.weight"])
    states = np.random.default_rng(0).standard_normal((1000, HIDDEN))
    logits = states @ router.T
    assert 0.8 < logits.std() < 1.2
    assert (np.bincount(logits.argmax(1), minlength=8) > 50).all()


def test_the_converted_model_says_that_it_is_sparse(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "dest", write_tokenizer=lambda metadata, folder: None, recipe=Recipe(SETTINGS))
    model = open_model(tmp_path / "dest")
    assert (model.banks[0].experts_per_layer, model.banks[0].layers) == (5, (0, 1))
    assert model.manifest.provenance["settings"] == {"upcycle": {"experts": 5, "top_k": 2, "seed": 3}}


def test_only_dense_llama_models_are_made_sparse(tmp_path: Path, tensors: dict) -> None:
    source = write_folder(tmp_path / "source", tensors, LLAMA | {"model_type": "qwen2"})
    with pytest.raises(UnsupportedError, match="dense llama"):
        upcycled(open_folder(source), SETTINGS)


def test_a_width_of_no_whole_blocks_is_refused(tmp_path: Path, tensors: dict) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    source = write_folder(tmp_path / "source", tensors | {name: random_values((100, HIDDEN), 0)}, LLAMA)
    with pytest.raises(UnsupportedError, match=r"up_proj.*100"):
        upcycled(open_folder(source), SETTINGS)


@pytest.mark.parametrize(("experts", "top_k"), [(0, 0), (2, 3), (4, 0), (5000, 2)])
def test_impossible_numbers_of_experts_are_refused(experts: int, top_k: int) -> None:
    with pytest.raises(UsageError):
        Upcycle(experts, top_k)
