"""Architectures whose experts are chosen with a bias that counts for the choice alone."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.latent import ROUTING
from engine.files.sources.gguf.architectures.record import PLUS_ONE, SIGMOID_SCORES, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    CHOICE_BIAS,
    CONFIG,
    DENSE_OR_SPARSE,
    EXPERT_WIDTH,
    EXPERTS,
    LOCAL_EXPERTS,
    MIXTRAL,
    MLP,
    MOE,
    QK_NORM,
    SHARED_EXPERTS,
    WIDTH,
    feed_forward,
)

_STEMS = {**ATTENTION, **QK_NORM, **MLP, **MOE, **SHARED_EXPERTS}
_CONFIG = {**CONFIG, **WIDTH, **EXPERT_WIDTH}
_BIASES = {"attention_bias": "attn_q.bias"}
_M3_INDEXER = {
    **{f"indexer.{part}_proj": f"self_attn.index_{part}_proj" for part in ("q", "k")},
    **{f"indexer.{part}_norm": f"self_attn.index_{part}_norm" for part in ("q", "k")},
}
_M3_NORMS = (
    *("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    *("indexer.q_norm", "indexer.k_norm", "output_norm.weight"),
)
_SLIDING = {True: "sliding_attention", False: "full_attention"}

BIASED = {
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        config={**_CONFIG, **ROUTING},
        stems={**_STEMS, "post_attention_norm": "post_attention_layernorm"},
        exact=CHOICE_BIAS,
        flags={**_BIASES, "use_qk_norm": "attn_q_norm.weight"},
        partial=True,
    ),
    "dots1": Architecture(
        "dots1",
        "Dots1ForCausalLM",
        config={**_CONFIG, **ROUTING},
        stems=_STEMS,
        exact=CHOICE_BIAS,
        flags=_BIASES,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        config={
            **CONFIG,
            **LOCAL_EXPERTS,
            "intermediate_size": Key("expert_feed_forward_length"),
            "rotary_dim": Key("rope.dimension_count"),
        },
        stems={**ATTENTION, **QK_NORM, **MIXTRAL},
        exact={"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
        flags={"use_qk_norm": "attn_q_norm.weight"},
        partial=True,
    ),
    "minimax-m3": Architecture(
        "minimax_m3_vl_text",
        "MiniMaxM3SparseForCausalLM",
        config={
            **CONFIG,
            **LOCAL_EXPERTS,
            "intermediate_size": Key("expert_feed_forward_length"),
            "dense_intermediate_size": Key("feed_forward_length"),
            "n_shared_experts": Key("expert_shared_count"),
            "routed_scaling_factor": Key("expert_weights_scale"),
            "rotary_dim": Key("rope.dimension_count"),
            "index_n_heads": Key("attention.indexer.head_count"),
            "index_head_dim": Key("attention.indexer.key_length"),
            "index_topk_blocks": Key("attention.indexer.top_k"),
            "index_block_size": Key("attention.indexer.block_size"),
            "index_local_blocks": Key("attention.indexer.local_blocks"),
        },
        stems={
            **ATTENTION,
            **QK_NORM,
            **MLP,
            **MIXTRAL,
            **feed_forward("block_sparse_moe.shared_experts", "_shexp"),
            **_M3_INDEXER,
        },
        exact={"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
        undo=dict.fromkeys(_M3_NORMS, PLUS_ONE),
        constants={"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        words={"scoring_func": (Key("expert_gating_func"), {SIGMOID_SCORES: "sigmoid"})},
        widths={"shared_intermediate_size": "ffn_gate_shexp.weight"},
        kinds={
            "layer_types": (("indexer.q_proj.weight", "minimax_m3_sparse"), ("attn_q.weight", "full_attention")),
            **DENSE_OR_SPARSE,
        },
        partial=True,
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        config={
            **_CONFIG,
            "moe_num_experts": Key("expert_count"),
            "moe_k": Key("expert_used_count"),
            "moe_num_shared_experts": Key("expert_shared_count", 0),
            "moe_layer_start_index": Key("leading_dense_block_count", 0),
            "moe_layer_interval": Key("interleave_moe_layer_step", 1),
        },
        stems=_STEMS,
        exact={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    ),
    "exaone-moe": Architecture(
        "exaone_moe",
        "ExaoneMoeForCausalLM",
        config={
            **_CONFIG,
            **{name: key for name, key in ROUTING.items() if name not in ("n_routed_experts", "n_shared_experts")},
            **EXPERTS,
            "num_shared_experts": Key("expert_shared_count", 0),
            "sliding_window": Key("attention.sliding_window"),
        },
        stems=_STEMS,
        exact={"exp_probs_b.bias": "mlp.e_score_correction_bias"},
        words={"layer_types": (Key("attention.sliding_window_pattern", listed=True), _SLIDING)},
        kinds=DENSE_OR_SPARSE,
    ),
}
