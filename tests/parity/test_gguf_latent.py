"""GGUF files of models with latent attention become what the same weights in safetensors become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine.base.errors import UnsupportedError
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from engine.files.sources.gguf.checkpoint import open_gguf
from engine.program.weights import FtwWeights
from engine.spec.families import spec_from_config

from .codecs_numpy import pack_for_conversion, unpack
from .conftest import Models
from .prepare import no_tokenizer
from .test_gguf_converter import assert_same

LENGTH = 32  # tokens that queries grow by
Floats = NDArray[np.float32]

OUTER = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
STEMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def write_gguf(
    path: Path,
    checkpoint: Path,
    *,
    split: bool,
    sigmoid: bool | None,
    latent: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    growth: float | None = None,
) -> dict[str, Any]:
    """The f32 checkpoint as llama.cpp's converter writes it, with keys and values apart or not; returns its config.

    Keys and values are quantised to the type `latent`. Without `sigmoid` the file does not say how experts score.
    Queries grow by `growth`, as those of Mistral Large 3.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    tensors = {name: values for file in checkpoint.glob("*.safetensors") for name, values in load_file(file).items()}
    writer = gguf.GGUFWriter(path, "deepseek2")
    _add_metadata(writer, config, split=split, sigmoid=sigmoid)
    if growth is not None:
        writer.add_float32("deepseek2.attention.temperature_scale", growth)
        writer.add_uint32("deepseek2.attention.temperature_length", LENGTH)
    for name, short in OUTER.items():
        writer.add_tensor(f"{short}.weight", tensors[name])
    for layer in range(config["num_hidden_layers"]):
        prefix, block = f"model.layers.{layer}.", f"blk.{layer}."
        for name, short in STEMS.items():
            if f"{prefix}{name}.weight" in tensors:
                writer.add_tensor(f"{block}{short}.weight", tensors[f"{prefix}{name}.weight"])
        for short, values in _latent(tensors[f"{prefix}self_attn.kv_b_proj.weight"], config, split).items():
            quantised = gguf.quants.quantize(np.ascontiguousarray(values), latent)
            writer.add_tensor(f"{block}{short}.weight", quantised, raw_dtype=latent)
        bias = tensors.get(f"{prefix}mlp.gate.e_score_correction_bias")
        if bias is not None:
            writer.add_tensor(f"{block}exp_probs_b.bias", bias)
        for kind, values in _experts(tensors, f"{prefix}mlp.experts.", config["n_routed_experts"]).items():
            writer.add_tensor(f"{block}ffn_{kind}_exps.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], *, split: bool, sigmoid: bool | None) -> None:
    keys = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(1 if split else config["num_attention_heads"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"] if split else keys)
    writer.add_value_length(config["kv_lora_rank"] if split else config["v_head_dim"])
    if split:
        writer.add_key_length_mla(keys)
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if sigmoid is not None:
        scores = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(scores.SIGMOID if sigmoid else scores.SOFTMAX)
    if config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    if (config.get("n_group") or 1) > 1:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _latent(values: Floats, config: Mapping[str, Any], split: bool) -> dict[str, Floats]:
    if not split:
        return {"attn_kv_b": values}
    heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
    nope = config["qk_nope_head_dim"]
    return {"attn_k_b": heads[:, :nope].swapaxes(1, 2), "attn_v_b": heads[:, nope:]}


def _experts(tensors: Mapping[str, Floats], prefix: str, count: int) -> dict[str, Floats]:
    """Gate, up and down of all experts of a layer; nothing for a layer without."""
    if f"{prefix}gate_up_proj" in tensors:
        gate, up = np.split(tensors[f"{prefix}gate_up_proj"], 2, axis=1)
        return {"gate": gate, "up": up, "down": tensors[f"{prefix}down_proj"]}
    if f"{prefix}0.up_proj.weight" not in tensors:
        return {}
    return {
        kind: np.stack([tensors[f"{prefix}{expert}.{kind}_proj.weight"] for expert in range(count)])
        for kind in ("gate", "up", "down")
    }


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    "name", ["deepseek_v2", "deepseek_v2-groups-no-q-lora", "deepseek_v3", "deepseek_v3-groups-yarn"]
)
def test_the_file_becomes_the_same_model(models: Models, tmp_path: Path, name: str, split: bool) -> None:
    model = models(name)
    config = write_gguf(tmp_path / "m.gguf", model.checkpoint, split=split, sigmoid="v3" in name)
    convert(tmp_path / "m.gguf", tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    ours = open_model(tmp_path / "m")
    rope = config["rope_parameters"]
    if "mscale" in rope:  # which the file does not hold
        rope["mscale"] = rope["mscale_all_dim"]
    assert ours.spec == spec_from_config(config).to_json()
    assert {name: bytes(tensor.data) for name, tensor in ours.dense.items()} == {
        name: bytes(tensor.data) for name, tensor in model.ftw.dense.items()
    }
    assert [bank.layers for bank in ours.banks] == [bank.layers for bank in model.ftw.banks]
    for mine, theirs in zip(ours.banks, model.ftw.banks, strict=True):
        assert [bytes(mine.record(i)) for i in range(mine.count)] == [
            bytes(theirs.record(i)) for i in range(theirs.count)
        ]


def test_queries_that_grow_are_those_of_mistral(models: Models, tmp_path: Path) -> None:
    model = models("mistral4")
    config = write_gguf(tmp_path / "m.gguf", model.checkpoint, split=True, sigmoid=False, growth=0.3)
    assert config["rope_parameters"]["original_max_position_embeddings"] == LENGTH
    convert(tmp_path / "m.gguf", tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    assert_same(open_model(tmp_path / "m"), model.ftw, {})


@pytest.mark.parametrize("latent", ["Q8_0", "Q4_0", "Q5_0"])
def test_quantised_keys_and_values_in_one_matrix(models: Models, tmp_path: Path, latent: str) -> None:
    """As older files have them: keys have to be transposed, and become the values that the file stands for."""
    kind = gguf.GGMLQuantizationType[latent]
    config = write_gguf(tmp_path / "m.gguf", models("deepseek_v3").checkpoint, split=False, sigmoid=True, latent=kind)
    convert(tmp_path / "m.gguf", tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    weights = FtwWeights(open_model(tmp_path / "m"), unpack)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for layer in range(config["num_hidden_layers"]):
        stored = gguf.quants.dequantize(tensors[f"blk.{layer}.attn_kv_b.weight"].data, kind)
        heads = stored.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        nope = config["qk_nope_head_dim"]
        keys, values = heads[:, :nope].swapaxes(1, 2), heads[:, nope:]
        for key, expected in (("k_up", keys), ("v_up", values)):
            ours = weights.dense(f"layers.{layer}.attn.{key}")
            np.testing.assert_array_equal(ours, expected.reshape(ours.shape))


def test_a_choice_bias_calls_for_sigmoid_scores(models: Models, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", models("deepseek_v3").checkpoint, split=True, sigmoid=False)
    with pytest.raises(UnsupportedError, match=r"exp_probs_b\.bias', which deepseek_v2 does not have"):
        open_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "silent.gguf", models("deepseek_v3").checkpoint, split=True, sigmoid=None)
    assert open_gguf(tmp_path / "silent.gguf").config["model_type"] == "deepseek_v3"
    write_gguf(tmp_path / "older.gguf", models("deepseek_v2").checkpoint, split=True, sigmoid=None)
    assert open_gguf(tmp_path / "older.gguf").config["model_type"] == "deepseek_v2"
