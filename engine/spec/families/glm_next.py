"""GLM-5.3: Kimi's delta nets beside latent attention to pools of tokens that an indexer chooses, in several streams."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import LatentRule
from engine.spec.families.config import key
from engine.spec.families.deepseek import DEEPSEEK_V3
from engine.spec.families.indexers import IndexRule
from engine.spec.families.layer_rules import DeltaRule, RecurrentRule
from engine.spec.families.naming import (
    INDEXER,
    NEXT_TOKEN,
    NEXT_TOKEN_LAYERS,
    SKIPPED,
    delta_net,
    in_layer,
    stream_mixture,
    values_in_layer,
)
from engine.spec.families.record import Family, StreamsRule
from engine.spec.families.sigmoid_routed import LAYER_KINDS, MOE
from engine.spec.names import Names, Skipped

LINEAR = "linear_attn_config."  # an older form of the settings of delta nets
HEADS = key(LINEAR + "num_heads", "linear_num_heads", default=64)
HEAD_DIM = key(LINEAR + "head_dim", "linear_head_dim", default=128)
POOLED = "self_attn.indexer.index_kpool_compress_"

GLM5_NEXT = Family(
    name="glm5_next",
    architecture="Glm5NextForConditionalGeneration",
    names=Names(
        (
            *INDEXER,
            in_layer(POOLED + "gate", "index.gate"),
            values_in_layer(POOLED + "ape", "index.places"),
            in_layer("self_attn.kv_a_proj_with_mqa.weight", "attn.kv_a"),
            in_layer("self_attn.kv_a_proj_with_mqa.bias", "attn.kv_a_bias"),
            *stream_mixture("attn"),
            *stream_mixture("ffn"),
            *delta_net("self_attn", decay="f_b_proj", gate="g_b_proj"),
            in_layer("self_attn.f_a_proj.weight", "delta.decay_a"),
            in_layer("self_attn.g_a_proj.weight", "delta.gate_a"),
            *DEEPSEEK_V3.names.sources,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS, Skipped("*.shared_head.*", NEXT_TOKEN)),
    ),
    inside="text_config",
    mixer=LatentRule(
        rope=None,
        norm_eps=key("rms_norm_eps", default=1e-5),
        index=IndexRule(
            top_k=key("index_topk", default=2048),
            heads=key("index_n_heads", default=32),
            head_dim=key("index_head_dim", default=128),
            norm_eps=1e-6,
            pool=key("index_kpool", default=16),
            types=key("indexer_types", default=()),
            pattern=key("index_topk_pattern", default=()),
            meanings={"full": "own", "shared": "shared", "F": "own", "S": "shared"},
            every=key("index_topk_freq", default=1),
            offset=key("index_skip_topk_offset", default=2),
        ),
    ),
    recurrent=RecurrentRule(
        DeltaRule(
            key_heads=HEADS,
            heads=HEADS,
            k_dim=HEAD_DIM,
            v_dim=HEAD_DIM,
            kernel=key(LINEAR + "short_conv_kernel_size", "linear_conv_kernel_dim", default=4),
            gate_activation="sigmoid",
            low_rank=True,
            bounded=True,
            bound=key(LINEAR + "gate_lower_bound", "linear_lower_bound", default=-5.0, null=0.0),
        ),
        names=("linear_attention",),
        attending=("full_attention", "indexed_attention"),
        interval=4,
    ),
    moe=replace(MOE, types=LAYER_KINDS, first_dense=3, limit=key("swiglu_limit", default=10.0)),
    streams=StreamsRule(
        count=key("hc_mult", default=4),
        iterations=key("hc_sinkhorn_iters", default=20),
        eps=key("hc_eps", default=1e-6),
        weighed_at_the_end=False,
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    defaults={
        "n_routed_experts": 288,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "qk_rope_head_dim": 0,
        "routed_scaling_factor": 2.5,
    },
    only={"index_kpool_always_select_tail": (True,), "qk_rope_head_dim": (0,)},
    also=("glm5_next_text",),
)

GLM_NEXT_FAMILIES = (GLM5_NEXT,)
