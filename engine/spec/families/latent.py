"""Latent attention as DeepSeek has it, in models of others: Mistral 4, Sarvam, A.X-K1, Youtu."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import TOLD_GROWTH, LatentRule, RopeRule
from engine.spec.families.config import Key, key
from engine.spec.families.deepseek import DEEPSEEK_V3, FIRST_DENSE, GROUPS, SCALE, SOURCES, TOP_GROUPS, WIDTH
from engine.spec.families.expert_rules import GroupRule, MoeRule, SharedRule
from engine.spec.families.naming import DECODER, LATENT_ATTENTION, NEXT_TOKEN_LAYERS, SKIPPED, in_layer
from engine.spec.families.record import Family
from engine.spec.families.sigmoid_routed import LAYER_KINDS
from engine.spec.names import Names, Skipped

PAIRS = key("rope_interleave", default=True)

# A head's rotated values are counted by qk_rope_head_dim, partial_rotary_factor says the same of whole heads.
MISTRAL4 = Family(
    name="mistral4",
    architecture="Mistral4ForCausalLM",
    names=Names(SOURCES, SKIPPED),
    mixer=LatentRule(
        rope=RopeRule(pairs=PAIRS, part=Key((), 1.0)),
        growth=TOLD_GROWTH,
    ),
    moe=MoeRule(
        count=key("n_routed_experts", "num_local_experts", default=128),
        top_k=key("num_experts_per_tok", default=4),
        width=WIDTH,
        normalize=key("norm_topk_prob", default=True),
        scale=SCALE,
        groups=GroupRule(GROUPS, TOP_GROUPS, group_top=2),
        shared=SharedRule(WIDTH, count=key("n_shared_experts", default=1)),
        first_dense=FIRST_DENSE,
    ),
    defaults={
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        }
    },
)

assert DEEPSEEK_V3.moe is not None
SARVAM_MLA = replace(
    DEEPSEEK_V3,
    name="sarvam_mla",
    architecture="SarvamMLAForCausalLM",
    moe=replace(
        DEEPSEEK_V3.moe,
        count=key("n_routed_experts", "num_experts", default=128),
        top_k=key("num_experts_per_tok", default=8),
        scale=key("routed_scaling_factor", default=2.5),
        shared=SharedRule(WIDTH, count=key("n_shared_experts", "num_shared_experts", default=1)),
        first_dense=key("first_k_dense_replace", default=1),
    ),
    defaults={},
    tested=("f32",),
    also=(),
)

# SK Telecom's A.X-K1. Checkpoints keep a norm behind the parts of dense layers too, where it has no use.
AXK1 = replace(
    DEEPSEEK_V3,
    name="axk1",
    architecture="AXK1ForCausalLM",
    names=Names(
        (
            in_layer("post_mlp_layernorm.weight", "experts_shared_norm"),
            in_layer("mlp.post_mlp_layernorm.weight", "experts_shared_norm"),
            *DEEPSEEK_V3.names.sources,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS, Skipped("*.post_mlp_layernorm.*", "unused-norm")),
    ),
    moe=replace(DEEPSEEK_V3.moe, output_normed=True, types=LAYER_KINDS),
    defaults={**DEEPSEEK_V3.defaults, "n_routed_experts": 192, "first_k_dense_replace": 1},
    tested=("f32",),
    also=(),
)

YOUTU = Family(
    name="youtu",
    architecture="YoutuForCausalLM",
    names=Names((*LATENT_ATTENTION, *DECODER), SKIPPED),
    mixer=LatentRule(rope=RopeRule(pairs=PAIRS)),
    defaults={"tie_word_embeddings": True},
)

LATENT_FAMILIES = (MISTRAL4, SARVAM_MLA, AXK1, YOUTU)
