"""How each GGUF architecture maps to a Hugging Face config and to Hugging Face tensor names, as data.

A tensor `blk.3.attn_q.weight` is looked up by its stem `attn_q` and keeps its suffix; a name with `{expert}` stands for
one index of a fused [experts, rows, cols] tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """A metadata key below the architecture's name; `default` of REQUIRED makes its absence an error."""

    name: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    `config` names the metadata behind each config field, `constants` what every model of it has. `stems` are the
    tensors of a layer, `exact` those whose suffix changes too, `stacked` tensors made of several fused ones by rows.
    `one_row` are vectors of the file that are matrices of one row elsewhere, `by_head` tensors [heads, rows, cols] that
    are matrices [heads * rows, cols]. A `latent` architecture describes heads that share a latent key.
    `permuted` says that the rows of q and k were reordered within each head for rotation by neighbours.
    `flags` are config fields that are true where the first layer has a certain tensor.
    """

    model_type: str
    hf_class: str
    config: Mapping[str, Key]
    stems: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    exact: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    flags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    one_row: frozenset[str] = frozenset()
    by_head: frozenset[str] = frozenset()
    latent: bool = False
    permuted: bool = False


OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"

# The value of `expert_gating_func` that stands for sigmoid scores, and what such an architecture is called here.
SIGMOID_SCORES = 2
WITH_SIGMOID = "{name} with sigmoid scores"
WITH_EXPERTS = "{name} with experts"

_ATTENTION_BIAS = {"attention_bias": "blk.0.attn_output.bias"}
_EVERY_CONFIG = {
    "hidden_size": Key("embedding_length"),
    "num_hidden_layers": Key("block_count"),
    "num_attention_heads": Key("attention.head_count"),
    "rms_norm_eps": Key("attention.layer_norm_rms_epsilon"),
    "max_position_embeddings": Key("context_length"),
    "rope_theta": Key("rope.freq_base", 10000.0),
}
_CONFIG = {
    **_EVERY_CONFIG,
    "num_key_value_heads": Key("attention.head_count_kv", None),
    "head_dim": Key("attention.key_length", None),
}
_WIDTH = {"intermediate_size": Key("feed_forward_length")}
_EXPERT_WIDTH = {"moe_intermediate_size": Key("expert_feed_forward_length")}
_EXPERTS = {"num_experts": Key("expert_count"), "num_experts_per_tok": Key("expert_used_count")}
_LOCAL_EXPERTS = {"num_local_experts": Key("expert_count"), "num_experts_per_tok": Key("expert_used_count")}

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}

# Latent attention: the matrix of keys and values from the latent is one (older files) or two, that of keys transposed.
_LATENT_CONFIG = {
    **_EVERY_CONFIG,
    **_WIDTH,
    **_EXPERT_WIDTH,
    "q_lora_rank": Key("attention.q_lora_rank", None),
    "kv_lora_rank": Key("attention.kv_lora_rank"),
    "qk_rope_head_dim": Key("rope.dimension_count"),
    "n_routed_experts": Key("expert_count", 0),
    "num_experts_per_tok": Key("expert_used_count", 0),
    "n_shared_experts": Key("expert_shared_count", 0),
    "n_group": Key("expert_group_count", 1),
    "topk_group": Key("expert_group_used_count", 1),
    "first_k_dense_replace": Key("leading_dense_block_count", 0),
    "norm_topk_prob": Key("expert_weights_norm", False),
    "routed_scaling_factor": Key("expert_weights_scale", 1.0),
}
_LATENT = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **_MLP,
    **_MOE,
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_BY_HEAD = frozenset({"attn_k_b", "attn_v_b"})

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        config={**_CONFIG, **_WIDTH},
        stems={**_ATTENTION, **_MLP},
        flags={**_ATTENTION_BIAS, "mlp_bias": "blk.0.ffn_gate.bias"},
        permuted=True,
    ),
    "llama with experts": Architecture(
        "mixtral",
        "MixtralForCausalLM",
        config={**_CONFIG, **_WIDTH, **_LOCAL_EXPERTS},
        stems={**_ATTENTION, **_MIXTRAL},
        constants={"sliding_window": None},
        permuted=True,
    ),
    "qwen2": Architecture(
        "qwen2",
        "Qwen2ForCausalLM",
        config={**_CONFIG, **_WIDTH},
        stems={**_ATTENTION, **_MLP},
        constants={"use_sliding_window": False},
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        config={
            **_CONFIG,
            **_WIDTH,
            **_EXPERTS,
            **_EXPERT_WIDTH,
            "shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
        },
        stems={**_ATTENTION, **_MOE, **_SHARED_EXPERT},
        one_row=frozenset({"ffn_gate_inp_shexp"}),
        constants={
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
    ),
    "qwen3": Architecture(
        "qwen3",
        "Qwen3ForCausalLM",
        config={**_CONFIG, **_WIDTH},
        stems={**_ATTENTION, **_QK_NORM, **_MLP},
        constants={"use_sliding_window": False},
        flags=_ATTENTION_BIAS,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        config={**_CONFIG, **_WIDTH, **_EXPERTS, **_EXPERT_WIDTH},
        stems={**_ATTENTION, **_QK_NORM, **_MOE},
        constants={
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
        flags=_ATTENTION_BIAS,
    ),
    "olmoe": Architecture(
        "olmoe",
        "OlmoeForCausalLM",
        config={**_CONFIG, **_WIDTH, **_EXPERTS},
        stems={**_ATTENTION, **_QK_NORM, **_MOE},
        constants={"norm_topk_prob": False, "clip_qkv": None},
        flags=_ATTENTION_BIAS,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        config={
            **_CONFIG,
            **_WIDTH,
            **_LOCAL_EXPERTS,
            "attention_multiplier": Key("attention.scale"),
            "embedding_multiplier": Key("embedding_scale"),
            "residual_multiplier": Key("residual_scale"),
            "logits_scaling": Key("logit_scale"),
        },
        stems={
            **_ATTENTION,
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_down_exps": "block_sparse_moe.output_linear",
        },
        flags=_ATTENTION_BIAS,
        stacked={"block_sparse_moe.input_linear.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight")},
        permuted=True,
    ),
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        config=_LATENT_CONFIG,
        stems=_LATENT,
        by_head=_BY_HEAD,
        latent=True,
    ),
    "deepseek2 with sigmoid scores": Architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        config=_LATENT_CONFIG,
        stems=_LATENT,
        exact={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        by_head=_BY_HEAD,
        latent=True,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        config={
            **_CONFIG,
            "intermediate_size": Key("expert_feed_forward_length"),
            **_LOCAL_EXPERTS,
            "sliding_window": Key("attention.sliding_window"),
        },
        stems={
            **_ATTENTION,
            "post_attention_norm": "post_attention_layernorm",
            **_MOE,
            "ffn_gate_inp": "mlp.router",
        },
        constants={"attention_bias": True, "swiglu_limit": 7.0, "hidden_act": "silu"},
        exact={"attn_sinks.weight": "self_attn.sinks"},
    ),
}
