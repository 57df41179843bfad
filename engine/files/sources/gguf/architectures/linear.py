"""MiniMax-01 and M1: layers that attend linearly, and a residual stream that is normed where parts read it."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import Architecture, Key
from engine.files.sources.gguf.architectures.shared import ATTENTION, CONFIG, LOCAL_EXPERTS, MIXTRAL, WIDTH

# One factor for all parts of every layer, and none for what they add.
_SHARES = {f"layernorm_{part}_alpha": Key("residual_scale") for part in ("full_attention", "linear_attention", "mlp")}

LINEAR = {
    "minimax-01": Architecture(
        "minimax",
        "MiniMaxForCausalLM",
        config={**CONFIG, **WIDTH, **LOCAL_EXPERTS, **_SHARES, "rotary_dim": Key("rope.dimension_count")},
        stems={
            **ATTENTION,
            **MIXTRAL,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_gate": "self_attn.output_gate",
            "attn_norm_2": "self_attn.norm",
        },
        renamed={"attn_output": ("attn_gate.weight", "self_attn.out_proj")},
        kinds={"layer_types": (("attn_gate.weight", "linear_attention"), ("attn_output.weight", "full_attention"))},
        partial=True,
    ),
}
