"""What many architectures of GGUF files have in common: config fields by metadata key, names by stem."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import K_PAIRS, Q_PAIRS, Key

EVERY_CONFIG = {
    "hidden_size": Key("embedding_length"),
    "num_attention_heads": Key("attention.head_count", largest=True),
    "rms_norm_eps": Key("attention.layer_norm_rms_epsilon"),
    "max_position_embeddings": Key("context_length"),
    "rope_theta": Key("rope.freq_base", 10000.0),
}
CONFIG = {
    **EVERY_CONFIG,
    "num_key_value_heads": Key("attention.head_count_kv", None, largest=True),
    "head_dim": Key("attention.key_length", None),
}
WIDTH = {"intermediate_size": Key("feed_forward_length")}
EXPERT_WIDTH = {"moe_intermediate_size": Key("expert_feed_forward_length")}
TOP_K = {"num_experts_per_tok": Key("expert_used_count")}
EXPERTS = {"num_experts": Key("expert_count"), **TOP_K}
LOCAL_EXPERTS = {"num_local_experts": Key("expert_count"), **TOP_K}
MULTIPLIERS = {
    "attention_multiplier": Key("attention.scale"),
    "embedding_multiplier": Key("embedding_scale"),
    "residual_multiplier": Key("residual_scale"),
    "logits_scaling": Key("logit_scale"),
}
ATTENTION_BIAS = {"attention_bias": "attn_output.bias"}

ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PAIRS = {"attn_q": Q_PAIRS, "attn_k": K_PAIRS}
GATED = ("gate", "up", "down")


def feed_forward(prefix: str = "mlp", ending: str = "") -> dict[str, str]:
    """A gated part whose tensors end in `ending`."""
    return {f"ffn_{kind}{ending}": f"{prefix}.{kind}_proj" for kind in GATED}


def experts(prefix: str = "mlp.experts", router: str = "mlp.gate") -> dict[str, str]:
    """Routed experts, fused in the file, and their router."""
    return {"ffn_gate_inp": router, **feed_forward(f"{prefix}.{{expert}}", "_exps")}


def by_number(prefix: str, ending: str = "") -> dict[str, str]:
    """The same under the names w1, w3 and w2."""
    return {f"ffn_{kind}{ending}": f"{prefix}.{name}" for kind, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))}


MLP = feed_forward()
MOE = experts()
SHARED_EXPERT = {"ffn_gate_inp_shexp": "mlp.shared_expert_gate", **feed_forward("mlp.shared_expert", "_shexp")}
SHARED_EXPERTS = feed_forward("mlp.shared_experts", "_shexp")
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    **by_number("block_sparse_moe.experts.{expert}", "_exps"),
}
GRANITE = {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_exps": "block_sparse_moe.output_linear"}
GRANITE_STACKED = {"block_sparse_moe.input_linear.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight")}
GRANITE_SHARED = {"ffn_down_shexp": "shared_mlp.output_linear"}
GRANITE_SHARED_STACKED = {"shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight")}
DENSE_OR_SPARSE = {"mlp_layer_types": (("ffn_gate_inp.weight", "sparse"), ("ffn_gate.weight", "dense"))}
CHOICE_BIAS = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
