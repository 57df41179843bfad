"""Families with an indexer, from the config.json files and the tensor names of published models."""

from __future__ import annotations

from typing import Any

import pytest

from engine.base.errors import UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import resolve, spec_from_config
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.rope import YarnScaling
from engine.spec.schema import Spec
from engine.spec.tensors import layer_tensors

COMMON: dict[str, Any] = {
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "index_head_dim": 128,
    "index_topk": 2048,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "qk_rope_head_dim": 64,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
}
DEEPSEEK_V3_2 = COMMON | {
    "model_type": "deepseek_v32",
    "hidden_size": 7168,
    "index_n_heads": 64,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "n_group": 8,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GLM_5 = COMMON | {
    "model_type": "glm_moe_dsa",
    "head_dim": 64,
    "hidden_size": 6144,
    "index_n_heads": 32,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "max_position_embeddings": 202752,
    "n_group": 1,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_head_dim": 256,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-05,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "topk_group": 1,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
FULL = (0, 1, *range(2, 78, 4))
GLM_5_2 = GLM_5 | {
    "head_dim": 192,  # of the part of a query that is not rotated: nothing is as wide as this
    "index_share_for_mtp_iteration": True,
    "index_skip_topk_offset": 3,
    "index_topk_freq": 4,
    "index_topk_pattern": None,
    "indexer_types": ["full" if layer in FULL else "shared" for layer in range(78)],
    "max_position_embeddings": 1048576,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
    "moe_router_dtype": "float32",
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
}


MINIMAX_M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "dense_intermediate_size": 12288,
        "head_dim": 128,
        "hidden_act": "swigluoai",
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "max_position_embeddings": 524288,
        "model_type": "minimax_m3",
        "moe_layer_freq": [0] * 3 + [1] * 57,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "partial_rotary_factor": 0.5,
        "qk_norm_type": "per_head",
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000,
        "rotary_dim": 64,
        "routed_scaling_factor": 2.0,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 3072,
        "sparse_attention_config": {
            "sparse_attention_freq": [0] * 3 + [1] * 57,
            "sparse_block_size": 128,
            "sparse_disable_index_value": [0] * 3 + [1] * 57,
            "sparse_index_dim": 128,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_num_index_heads": 4,
            "sparse_score_type": "max",
            "sparse_topk_blocks": 16,
            "use_sparse_attention": True,
        },
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 200064,
    },
}


def mixers(spec: Spec) -> list[LatentAttention]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]


def own(spec: Spec) -> tuple[int, ...]:
    """The layers with an indexer of their own."""
    return tuple(i for i, mixer in enumerate(mixers(spec)) if mixer.indexer and not mixer.indexer.shared)


def test_deepseek_v3_2() -> None:
    spec = spec_from_config(DEEPSEEK_V3_2)
    indexer, rope = mixers(spec)[0].indexer, mixers(spec)[0].rope
    assert indexer is not None
    assert indexer.rope is not None
    assert rope is not None
    assert own(spec) == tuple(range(61))
    assert (indexer.top_k, indexer.heads, indexer.head_dim, indexer.norm_eps) == (2048, 64, 128, 1e-6)
    assert (rope.pairs, indexer.rope.pairs) == (True, False), "a publisher's choice"
    assert isinstance(indexer.rope.scaling, YarnScaling)
    assert (indexer.rope.dim, indexer.rope.scaling.magnitude) == (64, 1.0)
    wanted = {tensor.key: (tensor.rows, tensor.cols) for tensor in layer_tensors(spec, 4)}
    assert (wanted["index.q"], wanted["index.k"], wanted["index.weights"]) == ((8192, 1536), (128, 7168), (64, 7168))
    assert (wanted["index.k_norm"], wanted["index.k_norm_bias"]) == ((0, 128), (0, 128))


def test_glm_5_2_shares_selections_between_layers() -> None:
    spec = spec_from_config(GLM_5_2)
    indexer = mixers(spec)[0].indexer
    assert own(spec) == FULL
    assert len(FULL) == 21
    assert indexer is not None
    assert indexer.rope is not None
    assert (indexer.heads, indexer.rope.pairs, indexer.rope.theta, indexer.rope.dim) == (32, True, 8e6, 64)
    assert mixers(spec)[0].scale == 256**-0.5
    assert spec.moe_layers == tuple(range(3, 78))
    assert spec.context_length == 1048576
    moe = spec.layers[3].ffn
    assert isinstance(moe, Moe)
    assert (moe.router.scoring, moe.router.scale, moe.router.normalize, moe.router.groups) == ("sigmoid", 2.5, True, 1)
    assert {tensor.key for tensor in layer_tensors(spec, 4)}.isdisjoint({"index.q", "index.k", "index.weights"})
    assert Spec.from_json(spec.to_json()) == spec


def test_a_schedule_says_what_a_list_does() -> None:
    spec = spec_from_config(GLM_5_2)
    assert spec_from_config({**GLM_5_2, "indexer_types": None}) == spec
    letters = "".join("F" if layer in FULL else "S" for layer in range(78))
    assert spec_from_config({**GLM_5_2, "indexer_types": None, "index_topk_pattern": letters}) == spec


def test_glm_5_has_an_indexer_in_every_layer() -> None:
    assert own(spec_from_config(GLM_5)) == tuple(range(78))


def test_minimax_m3_chooses_blocks() -> None:
    spec = spec_from_config(MINIMAX_M3)
    attention = spec.layers[3].mixer
    assert isinstance(attention, Attention)
    assert attention.indexer is not None
    assert attention.rope is not None
    indexer, dense = attention.indexer, spec.layers[0].ffn
    assert (indexer.top_k, indexer.block, indexer.local, indexer.sets, indexer.head_dim) == (16, 128, 1, 4, 128)
    assert (attention.rope.dim, attention.rope.theta, indexer.rope) == (64, 5e6, attention.rope)
    assert [layer.mixer.indexer is None for layer in spec.layers[:4] if isinstance(layer.mixer, Attention)] == [
        *[True] * 3,
        False,
    ]
    assert spec.moe_layers == tuple(range(3, 60))
    assert isinstance(dense, Dense)
    assert (dense.width, dense.activation) == (12288, Activation("clamped_silu", 1.702, 7.0))


def test_a_part_of_minimax_m3_that_is_not_computed_is_refused() -> None:
    text = MINIMAX_M3["text_config"]
    for name, value in (("sparse_init_block", 1), ("sparse_score_type", "mean"), ("use_sparse_attention", False)):
        sparse = text["sparse_attention_config"] | {name: value}
        with pytest.raises(UnsupportedError, match=name):
            spec_from_config(MINIMAX_M3 | {"text_config": text | {"sparse_attention_config": sparse}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indexer_types": ["shared"] * 78}, "before any layer has chosen"),
        ({"indexer_types": ["full"] * 3}, "3 types of layers for 78"),
        ({"indexer_types": ["none"] * 78}, "none"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
    ],
)
def test_what_no_model_has_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        spec_from_config(GLM_5_2 | change)


def test_an_indexer_of_a_layer_that_shares_is_left_out() -> None:
    config = GLM_5_2 | {"num_hidden_layers": 4, "indexer_types": ["full"] * 3 + ["shared"], "n_routed_experts": 8}
    config |= {"mlp_layer_types": ["dense"] * 4}
    index = {"wq_b.weight": (4096, 2048), "wk.weight": (128, 6144), "weights_proj.weight": (32, 6144)}
    index |= {"k_norm.weight": (128,), "k_norm.bias": (128,)}
    attention = {
        "q_a_proj.weight": (2048, 6144),
        "q_a_layernorm.weight": (2048,),
        "q_b_proj.weight": (16384, 2048),
        "kv_a_proj_with_mqa.weight": (576, 6144),
        "kv_a_layernorm.weight": (512,),
        "kv_b_proj.weight": (28672, 512),
        "o_proj.weight": (6144, 16384),
    }
    mlp = {"gate_proj.weight": (12288, 6144), "up_proj.weight": (12288, 6144), "down_proj.weight": (6144, 12288)}
    tensors: dict[str, tuple[int, ...]] = {f"model.{name}.weight": (154880, 6144) for name in ("embed_tokens",)}
    tensors |= {"lm_head.weight": (154880, 6144), "model.norm.weight": (6144,)}
    for layer in range(5):  # the last one guesses the token after the next
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}self_attn.indexer.{name}": shape for name, shape in index.items()}
        tensors |= {f"{prefix}self_attn.{name}": shape for name, shape in attention.items()}
        tensors |= {f"{prefix}mlp.{name}": shape for name, shape in mlp.items()}
        tensors |= {f"{prefix}{name}.weight": (6144,) for name in ("input_layernorm", "post_attention_layernorm")}
    spec, made = resolve(config, {name: ("bf16", shape) for name, shape in tensors.items()})
    assert len(spec.layers) == 4
    assert made.left_out == {"unused-indexer": 5, "next-token": 17}
