"""The families that random models can belong to: their configs, and their checkpoints' tensors by Hugging Face name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.shapes import Experts, Family, Shape, Tensor, Weight

# -- parts that families share ----------------------------------------------------------------------------------------


def _config(model_type: str, architecture: str, shape: Shape, **more: Any) -> dict[str, Any]:
    base = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    return base | more


def _norm(prefix: str, name: str, width: int, gguf: str = "") -> Weight:
    return Weight(f"{prefix}{name}.weight", (width,), "norm", 0.05, gguf)


def _attention(shape: Shape, prefix: str, *, bias: bool = False, rotary: bool = False) -> Iterator[Weight]:
    """Query, key, value and output projections; `rotary` marks those that the `llama` architecture permutes."""
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    in_std, out_std = shape.hidden**-0.5, width**-0.5
    rows = (
        ("q_proj", (width, shape.hidden), in_std, "attn_q", shape.heads if rotary else 0),
        ("k_proj", (kv_width, shape.hidden), in_std, "attn_k", shape.kv_heads if rotary else 0),
        ("v_proj", (kv_width, shape.hidden), in_std, "attn_v", 0),
        ("o_proj", (shape.hidden, width), out_std, "attn_output", 0),
    )
    for name, size, std, gguf, heads in rows:
        yield Weight(f"{prefix}self_attn.{name}.weight", size, "attention", std, f"{gguf}.weight", heads)
        if bias:
            yield Weight(f"{prefix}self_attn.{name}.bias", size[:1], "bias", 0.02)


def _expert_kinds(shape: Shape, names: dict[str, str]) -> Iterator[Experts]:
    """Gate, up and down under their own names, which hold `{e}`."""
    in_std, out_std = shape.hidden**-0.5, 2 * shape.intermediate**-0.5
    for kind in ("gate", "up"):
        yield Experts(
            names[kind], kind, shape.experts, shape.intermediate, shape.hidden, in_std, f"ffn_{kind}_exps.weight"
        )
    yield Experts(
        names["down"], "down", shape.experts, shape.hidden, shape.intermediate, out_std, "ffn_down_exps.weight"
    )


def _router(shape: Shape, name: str) -> Weight:
    """Twice the usual spread, so that the choice of experts is not a near tie."""
    return Weight(name, (shape.experts, shape.hidden), "router", 2 * shape.hidden**-0.5, "ffn_gate_inp.weight")


def _plain_expert_names(prefix: str) -> dict[str, str]:
    return {kind: f"{prefix}mlp.experts.{{e}}.{kind}_proj.weight" for kind in ("gate", "up", "down")}


# -- families ---------------------------------------------------------------------------------------------------------


def _qwen3_moe_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    yield _norm(prefix, "input_layernorm", shape.hidden, "attn_norm.weight")
    yield from _attention(shape, prefix)
    yield _norm(prefix, "self_attn.q_norm", shape.head_dim, "attn_q_norm.weight")
    yield _norm(prefix, "self_attn.k_norm", shape.head_dim, "attn_k_norm.weight")
    yield _norm(prefix, "post_attention_layernorm", shape.hidden, "ffn_norm.weight")
    yield _router(shape, f"{prefix}mlp.gate.weight")
    yield from _expert_kinds(shape, _plain_expert_names(prefix))


def _qwen3_moe_config(shape: Shape) -> dict[str, Any]:
    return _config(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        shape,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate * shape.top_k,
        moe_intermediate_size=shape.intermediate,
        num_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )


def _mixtral_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    experts = f"{prefix}block_sparse_moe.experts.{{e}}."
    yield _norm(prefix, "input_layernorm", shape.hidden, "attn_norm.weight")
    yield from _attention(shape, prefix, rotary=True)
    yield _norm(prefix, "post_attention_layernorm", shape.hidden, "ffn_norm.weight")
    yield _router(shape, f"{prefix}block_sparse_moe.gate.weight")
    yield from _expert_kinds(
        shape, {"gate": f"{experts}w1.weight", "up": f"{experts}w3.weight", "down": f"{experts}w2.weight"}
    )


def _mixtral_config(shape: Shape) -> dict[str, Any]:
    return _config(
        "mixtral",
        "MixtralForCausalLM",
        shape,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        sliding_window=None,
    )


def _olmoe_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    yield _norm(prefix, "input_layernorm", shape.hidden)
    yield from _attention(shape, prefix)
    yield _norm(prefix, "self_attn.q_norm", shape.heads * shape.head_dim)
    yield _norm(prefix, "self_attn.k_norm", shape.kv_heads * shape.head_dim)
    yield _norm(prefix, "post_attention_layernorm", shape.hidden)
    yield _router(shape, f"{prefix}mlp.gate.weight")
    yield from _expert_kinds(shape, _plain_expert_names(prefix))


def _olmoe_config(shape: Shape) -> dict[str, Any]:
    if shape.heads * shape.head_dim != shape.hidden:
        raise ValueError("olmoe heads must fill the hidden size: heads x head_dim = hidden")
    return _config(
        "olmoe",
        "OlmoeForCausalLM",
        shape,
        intermediate_size=shape.intermediate,
        num_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        norm_topk_prob=False,
        rope_theta=1e4,
        clip_qkv=None,
    )


def _granite_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    moe = f"{prefix}block_sparse_moe."
    yield _norm(prefix, "input_layernorm", shape.hidden)
    yield from _attention(shape, prefix)
    yield _norm(prefix, "post_attention_layernorm", shape.hidden)
    yield _router(shape, f"{moe}router.layer.weight")
    yield from _expert_kinds(
        shape,
        {
            "gate": f"{moe}input_linear.weight",
            "up": f"{moe}input_linear.weight",
            "down": f"{moe}output_linear.weight",
        },
    )


def _granite_config(shape: Shape) -> dict[str, Any]:
    if shape.heads * shape.head_dim != shape.hidden:
        raise ValueError("granitemoe heads must fill the hidden size: heads x head_dim = hidden")
    return _config(
        "granitemoe",
        "GraniteMoeForCausalLM",
        shape,
        intermediate_size=shape.intermediate,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        embedding_multiplier=4.0,
        attention_multiplier=shape.head_dim**-0.5,
        residual_multiplier=0.5,
        logits_scaling=2.0,
        rope_theta=1e4,
    )


def _gpt_oss_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    experts = f"{prefix}mlp.experts."
    yield _norm(prefix, "input_layernorm", shape.hidden)
    yield from _attention(shape, prefix, bias=True)
    yield Weight(f"{prefix}self_attn.sinks", (shape.heads,), "bias", 1.0)
    yield _norm(prefix, "post_attention_layernorm", shape.hidden)
    yield _router(shape, f"{prefix}mlp.router.weight")
    yield Weight(f"{prefix}mlp.router.bias", (shape.experts,), "bias", 0.1)
    in_std, out_std = shape.hidden**-0.5, 2 * shape.intermediate**-0.5
    for kind in ("gate", "up"):
        yield Experts(
            f"{experts}gate_up_proj",
            kind,
            shape.experts,
            shape.intermediate,
            shape.hidden,
            in_std,
            transposed=True,
            interleaved=True,
        )
    yield Experts(
        f"{experts}down_proj", "down", shape.experts, shape.hidden, shape.intermediate, out_std, transposed=True
    )
    yield Weight(f"{experts}gate_up_proj_bias", (shape.experts, 2 * shape.intermediate), "bias", 0.02)
    yield Weight(f"{experts}down_proj_bias", (shape.experts, shape.hidden), "bias", 0.02)


def _gpt_oss_config(shape: Shape) -> dict[str, Any]:
    return _config(
        "gpt_oss",
        "GptOssForCausalLM",
        shape,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        attention_bias=True,
        rms_norm_eps=1e-5,
        rope_theta=150000.0,
        rope_scaling=None,
        sliding_window=128,
        swiglu_limit=7.0,
        layer_types=["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)],
        tie_word_embeddings=False,
    )


_NOPE, _ROPE, _KV_RANK, _Q_RANK = 64, 32, 256, 384  # DeepSeek's latent attention, at half of its published sizes


def _deepseek_v3_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    attn = f"{prefix}self_attn."
    std = shape.hidden**-0.5
    qk_dim = _NOPE + _ROPE
    yield _norm(prefix, "input_layernorm", shape.hidden)
    yield Weight(f"{attn}q_a_proj.weight", (_Q_RANK, shape.hidden), "attention", std)
    yield Weight(f"{attn}q_a_layernorm.weight", (_Q_RANK,), "norm", 0.05)
    yield Weight(f"{attn}q_b_proj.weight", (shape.heads * qk_dim, _Q_RANK), "attention", _Q_RANK**-0.5)
    yield Weight(f"{attn}kv_a_proj_with_mqa.weight", (_KV_RANK + _ROPE, shape.hidden), "attention", std)
    yield Weight(f"{attn}kv_a_layernorm.weight", (_KV_RANK,), "norm", 0.05)
    kv_rows = shape.heads * (_NOPE + shape.head_dim)
    yield Weight(f"{attn}kv_b_proj.weight", (kv_rows, _KV_RANK), "attention", _KV_RANK**-0.5)
    width = shape.heads * shape.head_dim
    yield Weight(f"{attn}o_proj.weight", (shape.hidden, width), "attention", width**-0.5)
    yield _norm(prefix, "post_attention_layernorm", shape.hidden)
    yield _router(shape, f"{prefix}mlp.gate.weight")
    yield Weight(f"{prefix}mlp.gate.e_score_correction_bias", (shape.experts,), "bias", 0.05)
    yield from _expert_kinds(shape, _plain_expert_names(prefix))
    for kind in ("gate", "up", "down"):
        inward = kind != "down"
        size = (shape.intermediate, shape.hidden) if inward else (shape.hidden, shape.intermediate)
        yield Weight(f"{prefix}mlp.shared_experts.{kind}_proj.weight", size, "attention", size[1] ** -0.5)


def _deepseek_v3_config(shape: Shape) -> dict[str, Any]:
    groups = 4 if shape.experts % 4 == 0 and shape.experts >= 8 else 1
    return _config(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        shape,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.intermediate * shape.top_k,
        moe_intermediate_size=shape.intermediate,
        n_routed_experts=shape.experts,
        n_shared_experts=1,
        num_experts_per_tok=shape.top_k,
        first_k_dense_replace=0,
        n_group=groups,
        topk_group=max(1, groups // 2),
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        q_lora_rank=_Q_RANK,
        kv_lora_rank=_KV_RANK,
        qk_nope_head_dim=_NOPE,
        qk_rope_head_dim=_ROPE,
        v_head_dim=shape.head_dim,
        rope_theta=1e4,
        rope_interleave=True,
        tie_word_embeddings=False,
    )


FAMILIES = {
    "qwen3_moe": Family(_qwen3_moe_config, _qwen3_moe_layer, gguf="qwen3moe"),
    "mixtral": Family(_mixtral_config, _mixtral_layer, gguf="llama"),
    "olmoe": Family(_olmoe_config, _olmoe_layer),
    "granitemoe": Family(_granite_config, _granite_layer),
    "gpt_oss": Family(_gpt_oss_config, _gpt_oss_layer, tied=False),
    "deepseek_v3": Family(_deepseek_v3_config, _deepseek_v3_layer, tied=False),
}
