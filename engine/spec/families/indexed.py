"""Families whose attention sees what an indexer has chosen."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.config import key
from engine.spec.families.deepseek import DEEPSEEK_V3
from engine.spec.families.indexers import IndexRule
from engine.spec.families.naming import INDEXER, NEXT_TOKEN_LAYERS, SKIPPED
from engine.spec.families.record import Family, LatentRule, RopeRule
from engine.spec.families.sigmoid_routed import LAYER_KINDS, MOE
from engine.spec.names import Names, Skipped

# An indexer's Hadamard transform, in the publishers' code, is orthogonal: it changes no product of a query and a key.
INDEX = IndexRule(
    top_k=key("index_topk", default=2048),
    heads=key("index_n_heads", default=64),
    head_dim=key("index_head_dim", default=128),
    norm_eps=1e-6,
    types=key("layer_types", default=()),
    meanings={"indexed_attention": "own"},
)
EXPERTS = replace(MOE, types=LAYER_KINDS, first_dense=key("first_k_dense_replace", default=3))
ONLY = {
    "topk_method": ("noaux_tc",),
    "scoring_func": ("sigmoid",),
    "moe_layer_freq": (1,),
    "rope_interleave": (True,),
    "mlp_bias": (False,),
}

DEEPSEEK_V32 = Family(
    name="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    names=Names((*INDEXER, *DEEPSEEK_V3.names.sources), (*SKIPPED, NEXT_TOKEN_LAYERS)),
    mixer=LatentRule(rope=RopeRule(pairs=True), index=INDEX),
    moe=EXPERTS,
    only={**ONLY, "indexer_rope_interleave": (False,)},
)

# GLM-5. From GLM-5.2 on most layers share a selection; some checkpoints keep an indexer there all the same.
GLM_MOE_DSA = Family(
    name="glm_moe_dsa",
    architecture="GlmMoeDsaForCausalLM",
    names=Names(
        (*INDEXER, *DEEPSEEK_V3.names.sources),
        (*SKIPPED, NEXT_TOKEN_LAYERS, Skipped("*.self_attn.indexer.*", "unused-indexer")),
    ),
    mixer=LatentRule(
        rope=RopeRule(pairs=True),
        index=replace(
            INDEX,
            heads=key("index_n_heads", default=32),
            pairs=True,
            types=key("indexer_types", default=()),
            pattern=key("index_topk_pattern", default=()),
            meanings={"full": "own", "shared": "shared", "F": "own", "S": "shared"},
            every=key("index_topk_freq", default=1),
            offset=key("index_skip_topk_offset", default=2),
        ),
    ),
    moe=EXPERTS,
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={**ONLY, "indexer_rope_interleave": (True,), "layer_types": ("indexed_attention",)},
)

INDEXED_FAMILIES = (DEEPSEEK_V32, GLM_MOE_DSA)
