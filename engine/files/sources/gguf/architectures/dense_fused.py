"""Architectures without experts whose files keep gates and ups in one matrix."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import Architecture, Key
from engine.files.sources.gguf.architectures.shared import ATTENTION, CONFIG, WIDTH

_STEMS = {**ATTENTION, "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}

DENSE_FUSED = {
    # Files of what also sees (GLM-4.1V) have sections of positions, and queries and keys in another order.
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        config={**CONFIG, **WIDTH},
        stems={**_STEMS, "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
        words={"rope_scaling.mrope_section": (Key("rope.dimension_sections", None, listed=True), {})},
        flags={"attention_bias": "attn_q.bias"},
        partial=True,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        config={**CONFIG, **WIDTH, "sliding_window": Key("attention.sliding_window", 0)},
        stems={**_STEMS, "attn_qkv": "self_attn.qkv_proj"},
        partial=True,
    ),
}
