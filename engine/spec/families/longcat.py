"""Meituan's LongCat-Flash: two latent attentions and two dense parts a layer, whose experts take a shortcut."""

from __future__ import annotations

from engine.spec.families.attention_rules import LatentRule, RopeRule
from engine.spec.families.config import Key, key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import GATED, NEXT_TOKEN, SKIPPED
from engine.spec.families.record import Family
from engine.spec.names import PER_HEAD, Names, Skipped, Source

PAIR = "model.layers.{pair}."
ATTENTION = PAIR + "self_attn.{half}."
DENSE_WIDTH = key("ffn_hidden_size", "intermediate_size")


def _dense_part(keys: str) -> tuple[Source, ...]:
    """The dense part of a half; that of the first is beside the routed experts."""
    return tuple(Source(f"{PAIR}mlps.{{half}}.{name}_proj.weight", (f"{keys}{name}",)) for name in GATED)


SOURCES = (
    Source("model.embed_tokens.weight", ("embed",)),
    Source("model.norm.weight", ("final_norm",)),
    Source("lm_head.weight", ("head",)),
    Source(PAIR + "input_layernorm.{half}.weight", ("attn_norm",)),
    Source(PAIR + "post_attention_layernorm.{half}.weight", ("ffn_norm",)),
    Source(ATTENTION + "q_a_proj.weight", ("attn.q_a",)),
    Source(ATTENTION + "q_a_proj.bias", ("attn.q_a_bias",)),
    Source(ATTENTION + "q_a_layernorm.weight", ("attn.q_a_norm",)),
    Source(ATTENTION + "q_b_proj.weight", ("attn.q",)),
    Source(ATTENTION + "kv_a_proj_with_mqa.weight", ("attn.kv_a", "attn.k_rope")),
    Source(ATTENTION + "kv_a_proj_with_mqa.bias", ("attn.kv_a_bias", "attn.k_rope_bias")),
    Source(ATTENTION + "kv_a_layernorm.weight", ("attn.kv_a_norm",)),
    Source(ATTENTION + "kv_b_proj.weight", ("attn.k_up", "attn.v_up"), PER_HEAD, transposed=("attn.k_up",)),
    Source(ATTENTION + "o_proj.weight", ("attn.o",)),
    Source(ATTENTION + "o_proj.bias", ("attn.o_bias",)),
    *_dense_part("shared."),
    *_dense_part("ffn."),
    Source(PAIR + "mlp.router.classifier.weight", ("router",)),
    Source(PAIR + "mlp.router.e_score_correction_bias", ("router_choice_bias",)),
    *(Source(f"{PAIR}mlp.experts.{{expert}}.{name}_proj.weight", (name,)) for name in GATED),
)

LONGCAT_FLASH = Family(
    name="longcat_flash",
    architecture="LongcatFlashForCausalLM",
    names=Names(
        SOURCES,
        (
            *SKIPPED,
            Skipped("model.mtp.*", NEXT_TOKEN),
            Skipped(
                "model.layers.*.mlp.experts.{zero}.*", "zero-computation"
            ),  # which transformers writes nevertheless
        ),
    ),
    # qk_rope_head_dim says how many values are rotated.
    mixer=LatentRule(scaled_latents=True, rope=RopeRule(theta=1e7, pairs=True, part=Key((), 1.0))),
    moe=MoeRule(
        count=key("n_routed_experts"),
        top_k=key("moe_topk", "num_experts_per_tok"),
        width=key("expert_ffn_hidden_size", "moe_intermediate_size"),
        scale=key("routed_scaling_factor", default=6.0),
        choice_bias=True,
        shared=SharedRule(DENSE_WIDTH),
        zero=key("zero_expert_num", default=0),
    ),
    dense_width=DENSE_WIDTH,
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={
        "attention_method": ("MLA",),
        "mla_scale_q_lora": (True,),
        "mla_scale_kv_lora": (True,),
        "norm_topk_prob": (False,),
        "router_bias": (False,),
        "zero_expert_type": ("identity",),
    },
    paired=True,
)

LONGCAT_FAMILIES = (LONGCAT_FLASH,)
