"""Cohere: both parts of a layer read one norm. Positions are rotated in the layers with a window alone."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import ATTENTION_BIAS, SLIDING_MOST, AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import DECODER, EXPERTS, SHARED_EXPERTS, SKIPPED
from engine.spec.families.record import GATED, Family, NormRule
from engine.spec.families.sigmoid_routed import LAYER_KINDS
from engine.spec.families.sparse import COUNT, TOP_K
from engine.spec.names import Names
from engine.spec.residual import Residual

FIRST_DENSE = key("first_k_dense_replace", default=0)
WINDOW = WindowRule(
    size=key("sliding_window", default=4096, null=0),
    typed=True,
    layers=SLIDING_MOST,
    interval=key("sliding_window_pattern", default=4),
)
EVERYWHERE = AttentionRule(qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS, rope=None, window=WINDOW)
ROTATED = replace(EVERYWHERE, rope=RopeRule(pairs=True))

COHERE2 = Family(
    name="cohere2",
    architecture="Cohere2ForCausalLM",
    names=Names(DECODER, SKIPPED),
    mixer=EVERYWHERE,
    windowed=ROTATED,
    norm=NormRule("layer"),
    norm_eps=key("layer_norm_eps", default=1e-5),
    residual=Residual("parallel"),
    activations=GATED,
    logit_scale=key("logit_scale", default=0.0625),
    only={"use_qk_norm": (False,), "use_parallel_block": (True,), "use_parallel_embedding": (True, False)},
)

# Layers without experts rotate positions in any case. Those that come first see everything.
MOE_WINDOW = replace(WINDOW, first=FIRST_DENSE)
MOE_HEAD_DIM = key("head_dim", default=128)
COHERE2_MOE = replace(
    COHERE2,
    name="cohere2_moe",
    architecture="Cohere2MoeForCausalLM",
    names=Names((*DECODER, *EXPERTS, *SHARED_EXPERTS), SKIPPED),
    mixer=replace(EVERYWHERE, head_dim=MOE_HEAD_DIM, window=MOE_WINDOW),
    windowed=replace(ROTATED, head_dim=MOE_HEAD_DIM, window=MOE_WINDOW),
    unrouted=replace(ROTATED, head_dim=MOE_HEAD_DIM, window=MOE_WINDOW),
    norm=NormRule("layer", rms_eps=key("rms_norm_eps")),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=key("intermediate_size"),
        scoring=key("expert_selection_fn", default="softmax"),
        scorings={"softmax": "softmax_topk", "sigmoid": "sigmoid"},
        normalize=key("norm_topk_prob", default=True),
        shared=SharedRule(
            key("intermediate_size"),
            count=key("num_shared_experts", default=0),
            combination=key("shared_expert_combination_strategy", default="average"),
        ),
        first_dense=FIRST_DENSE,
        types=LAYER_KINDS,
    ),
    dense_width=key("prefix_dense_intermediate_size", "intermediate_size"),
    only={"prefix_dense_sliding_window_pattern": (1,)},
)

PARALLEL_FAMILIES = (COHERE2, COHERE2_MOE)
