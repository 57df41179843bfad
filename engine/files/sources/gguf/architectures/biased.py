"""Architectures whose experts are chosen with a bias that counts for the choice alone."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.latent import ROUTING
from engine.files.sources.gguf.architectures.record import Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    CHOICE_BIAS,
    CONFIG,
    EXPERT_WIDTH,
    EXPERTS,
    LOCAL_EXPERTS,
    MIXTRAL,
    MLP,
    MOE,
    QK_NORM,
    SHARED_EXPERTS,
    WIDTH,
)

_STEMS = {**ATTENTION, **QK_NORM, **MLP, **MOE, **SHARED_EXPERTS}
_CONFIG = {**CONFIG, **WIDTH, **EXPERT_WIDTH}
_BIASES = {"attention_bias": "attn_q.bias"}
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
        kinds={"mlp_layer_types": (("ffn_gate_inp.weight", "sparse"), ("ffn_gate.weight", "dense"))},
    ),
}
