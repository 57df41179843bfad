"""DeepSeek-V4's config.json as its publisher writes it, and as transformers writes it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.base.errors import CorruptFileError, FreetokenError
from engine.program.lowering.lower import lower
from engine.spec.compressed import CompressedAttention
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Moe
from engine.spec.rope import Rope, YarnScaling

COMMON: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "tie_word_embeddings": False,
}
YARN = {"factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
PUBLISHED = {
    **COMMON,
    "compress_ratios": [0, 0, 4, 128, 0],
    "num_hash_layers": 3,
    "qk_rope_head_dim": 64,
    "rope_scaling": {"type": "yarn", **YARN},
}
SHARE = {"partial_rotary_factor": 0.125}
SAVED = {
    **COMMON,
    **SHARE,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "hash_moe", "hash_moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000, **SHARE},
        "compress": {"rope_type": "yarn", "rope_theta": 160000, "attention_factor": 1.0, **YARN, **SHARE},
    },
}


def test_both_forms_are_one_model() -> None:
    assert spec_from_config(PUBLISHED) == spec_from_config(SAVED)


def test_what_a_published_model_is() -> None:
    spec = spec_from_config(PUBLISHED)
    mixers = [layer.mixer for layer in spec.layers]
    assert all(isinstance(mixer, CompressedAttention) for mixer in mixers)
    window, _, sparse, heavy = mixers
    assert window.compression is None
    assert window.rope == Rope(10000.0, 64, pairs=True)
    assert sparse.rope == Rope(160000.0, 64, True, YarnScaling(16.0, 65536, 32.0, 1.0, True, 1.0))
    assert (sparse.compression.rate, sparse.compression.overlap, sparse.compression.indexer.top_k) == (4, True, 512)
    assert (heavy.compression.rate, heavy.compression.overlap, heavy.compression.indexer) == (128, False, None)
    routers = [layer.ffn.router for layer in spec.layers if isinstance(layer.ffn, Moe)]
    assert [router.by_token for router in routers] == [True, True, True, False]
    assert [router.choice_bias for router in routers] == [False, False, False, True]
    assert spec.streams is not None
    assert spec.streams.count == 4


def test_context_memory_counts_one_entry_for_several_tokens() -> None:
    """Of a page of 16 tokens: four entries of 512 and of 128 values, and one entry of 512 where it stands for 128."""
    program = lower(spec_from_config(PUBLISHED))
    assert program.kv_bytes_per_token == (4 * 512 * 2 + 4 * 128 * 2 + 512 * 2) // 16
    assert program.window_bytes_per_token == 4 * 512 * 2
    assert program.state_bytes == 4 * (6 * 512 + 6 * 128 + 3 * 512)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compress_ratios": [0, 0, 7, 128]}, "7"),
        ({"compress_ratios": [0, 4]}, "2"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"attention_bias": True}, "attention_bias"),
        ({"qk_rope_head_dim": 63}, "63"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(FreetokenError, match=named):
        spec_from_config({**PUBLISHED, **changes})


def test_a_width_of_attention_that_is_missing_is_named() -> None:
    with pytest.raises(CorruptFileError, match="o_groups"):
        spec_from_config({name: value for name, value in PUBLISHED.items() if name != "o_groups"})
