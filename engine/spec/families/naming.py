"""The names that Hugging Face checkpoints have in common; families put their own before them."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.names import PER_HEAD, PLUS_ONE_ENDING, STRIDED, Skipped, Source

LAYER = "model.layers.{layer}."
NEXT_TOKEN = "next-token"
VISION = (
    *("vision_tower", "vision_model", "visual", "mlp1"),
    *("multi_modal_projector", "mm_projector", "vit_large_projector"),
)
# Scales of activations, which are not rounded here as quantised checkpoints would have it, and of a cache of 8 bits.
ACTIVATION_SCALES = (
    *("input_scale", "input_scale_inv", "input_scale_ub", "input_global_scale", "input_zero_point"),
    *("activation_scale", "act_scale", "output_scale"),
)
FUSED_SCALES = ("input_scale", "input_global_scale", "activation_scale")
CACHE_SCALES = ("q_scale", "k_scale", "v_scale", "kv_scale", "prob_scale")
SKIPPED = (
    *(Skipped(f"*.{name}", "activation-scale") for name in ACTIVATION_SCALES),
    *(Skipped(f"*_{name}", "activation-scale") for name in FUSED_SCALES),
    *(Skipped(f"*.{name}", "cache-scale") for name in CACHE_SCALES),
    Skipped("*rotary_emb.inv_freq", "rotary-table"),
    *(Skipped(f"*{name}.*", "vision") for name in VISION),
    Skipped("*image_newline", "vision"),
    *(Skipped(f"*{name}.*", "audio") for name in ("audio_tower", "audio_model")),
    *(Skipped(f"{name}.*", "speech") for name in ("talker", "code2wav", "token2wav")),
    Skipped("mtp.*", NEXT_TOKEN),
)
NEXT_TOKEN_LAYERS = Skipped(LAYER.replace("{layer}", "{next}") + "*", NEXT_TOKEN)


def in_layer(name: str, *holds: str, arrangement: str = "stacked", flipped: bool = False) -> Source:
    """A tensor of every layer."""
    return Source(LAYER + name, holds, arrangement, flipped)


def values_in_layer(name: str, key: str, parts: tuple[str, ...] = ("",)) -> Source:
    """A vector of every layer that checkpoints keep in another shape, perhaps in `parts`."""
    return Source(LAYER + name, (key,), parts=parts, flat=True)


def zero_centred(sources: tuple[Source, ...], *keys: str) -> tuple[Source, ...]:
    """The rules for a checkpoint that keeps the norms `keys` as what is added to one, or has added it."""
    centred = [source for source in sources if source.holds[0] in keys]
    added = (replace(source, template=source.template + PLUS_ONE_ENDING) for source in centred)
    return (*(replace(source, plus=1.0) if source in centred else source for source in sources), *added)


def also_under(prefix: str, sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """The rules for checkpoints that keep the decoder under `prefix` instead of `model.`, and the rules themselves."""
    inner = [source for source in sources if source.template.startswith("model.")]
    moved = (replace(source, template=prefix + source.template.removeprefix("model.")) for source in inner)
    return (*moved, *sources)


def projections(prefix: str, keys: str, names: tuple[str, ...]) -> tuple[Source, ...]:
    """Linear layers `prefix.name` with weights and biases, kept under `keys` and the same names."""
    weights = tuple(in_layer(f"{prefix}.{name}_proj.weight", f"{keys}{name}") for name in names)
    biases = tuple(in_layer(f"{prefix}.{name}_proj.bias", f"{keys}{name}_bias") for name in names)
    return weights + biases


GATED = ("gate", "up", "down")

DECODER = (
    Source("model.embed_tokens.weight", ("embed",)),
    Source("model.norm.weight", ("final_norm",)),
    Source("lm_head.weight", ("head",)),
    in_layer("input_layernorm.weight", "attn_norm"),
    in_layer("post_attention_layernorm.weight", "ffn_norm"),
    *projections("self_attn", "attn.", ("q", "k", "v", "o")),
    in_layer("self_attn.q_norm.weight", "attn.q_norm"),
    in_layer("self_attn.k_norm.weight", "attn.k_norm"),
    in_layer("self_attn.sinks", "attn.sinks"),
    *projections("mlp", "ffn.", GATED),
)

# One tensor an expert, or all experts of a layer in one with gate above up.
EXPERTS = (
    in_layer("mlp.gate.weight", "router"),
    *projections("mlp.experts.{expert}", "", GATED),
    in_layer("mlp.experts.gate_up_proj", "gate", "up"),
    in_layer("mlp.experts.down_proj", "down"),
)

EXPERTS_FLIPPED = (
    in_layer("mlp.experts.gate_up_proj", "gate", "up", flipped=True),
    in_layer("mlp.experts.down_proj", "down", flipped=True),
)

SHARED_EXPERT = (
    *projections("mlp.shared_expert", "shared.", GATED),
    in_layer("mlp.shared_expert_gate.weight", "shared.sigmoid_gate"),
)

SHARED_EXPERTS = projections("mlp.shared_experts", "shared.", GATED)

MIXTRAL_EXPERTS = (
    in_layer("block_sparse_moe.gate.weight", "router"),
    in_layer("block_sparse_moe.experts.{expert}.w1.weight", "gate"),
    in_layer("block_sparse_moe.experts.{expert}.w3.weight", "up"),
    in_layer("block_sparse_moe.experts.{expert}.w2.weight", "down"),
)

GRANITE_EXPERTS = (
    in_layer("block_sparse_moe.router.layer.weight", "router"),
    in_layer("block_sparse_moe.input_linear.weight", "gate", "up"),
    in_layer("block_sparse_moe.output_linear.weight", "down"),
    in_layer("block_sparse_moe.router.weight", "router"),
    in_layer("block_sparse_moe.experts.gate_up_proj", "gate", "up"),
    in_layer("block_sparse_moe.experts.down_proj", "down"),
)

# gpt-oss keeps its experts as [in, out], gate and up in turn; quantised to mxfp4 as [out, in].
GPT_OSS_EXPERTS = (
    in_layer("mlp.router.weight", "router"),
    in_layer("mlp.router.bias", "router_bias"),
    in_layer("mlp.experts.gate_up_proj_blocks", "gate", "up", arrangement=STRIDED),
    in_layer("mlp.experts.gate_up_proj", "gate", "up", arrangement=STRIDED, flipped=True),
    in_layer("mlp.experts.gate_up_proj_bias", "gate_bias", "up_bias", arrangement=STRIDED),
    in_layer("mlp.experts.down_proj_blocks", "down"),
    in_layer("mlp.experts.down_proj", "down", flipped=True),
    in_layer("mlp.experts.down_proj_bias", "down_bias"),
    *projections("mlp.experts.{expert}", "", GATED),
)


def stream_mixture(part: str) -> tuple[Source, ...]:
    """What mixes several residual streams around a part of a layer, "attn" or "ffn"."""
    places = (("fn", "mix"), ("base", "mix_base"), ("scale", "mix_scale"))
    return tuple(in_layer(f"hc_{part}_{theirs}", f"{part}_{ours}") for theirs, ours in places)


def delta_net(place: str, decay: str = "f_proj", gate: str = "g_proj", output: str = "o_proj") -> tuple[Source, ...]:
    """A delta net under `place` whose projections and convolutions lie apart; those named differ between publishers."""
    return (
        *projections(place, "delta.", ("q", "k", "v")),
        values_in_layer(f"{place}.{{part}}_conv1d.weight", "delta.conv", parts=("q", "k", "v")),
        in_layer(f"{place}.{decay}.weight", "delta.decay"),
        in_layer(f"{place}.{gate}.weight", "delta.gate"),
        in_layer(f"{place}.b_proj.weight", "delta.beta"),
        values_in_layer(f"{place}.A_log", "delta.a_log"),
        in_layer(f"{place}.dt_bias", "delta.dt_bias"),
        in_layer(f"{place}.o_norm.weight", "delta.norm"),
        in_layer(f"{place}.{output}.weight", "delta.o"),
    )


INDEXER = (
    in_layer("self_attn.indexer.wq_b.weight", "index.q"),
    in_layer("self_attn.indexer.wk.weight", "index.k"),
    in_layer("self_attn.indexer.k_norm.weight", "index.k_norm"),
    in_layer("self_attn.indexer.k_norm.bias", "index.k_norm_bias"),
    in_layer("self_attn.indexer.weights_proj.weight", "index.weights"),
)

LATENT_ATTENTION = (
    in_layer("self_attn.q_a_proj.weight", "attn.q_a"),
    in_layer("self_attn.q_a_proj.bias", "attn.q_a_bias"),
    in_layer("self_attn.q_a_layernorm.weight", "attn.q_a_norm"),
    in_layer("self_attn.q_b_proj.weight", "attn.q"),
    in_layer("self_attn.kv_a_proj_with_mqa.weight", "attn.kv_a", "attn.k_rope"),
    in_layer("self_attn.kv_a_proj_with_mqa.bias", "attn.kv_a_bias", "attn.k_rope_bias"),
    in_layer("self_attn.kv_a_layernorm.weight", "attn.kv_a_norm"),
    Source(LAYER + "self_attn.kv_b_proj.weight", ("attn.k_up", "attn.v_up"), PER_HEAD, transposed=("attn.k_up",)),
    in_layer("self_attn.k_b_proj.weight", "attn.k_up"),
    in_layer("self_attn.v_b_proj.weight", "attn.v_up"),
)
