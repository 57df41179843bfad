"""GLM-5.3: several residual streams, and delta nets beside latent attention to pools of tokens."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.latent import HEADS_APART, INDEX, INDEXER, LATENT_CONFIG, LATENT_STEMS
from engine.files.sources.gguf.architectures.record import LOGARITHM, SIGMOID_SCORES, Architecture, Key
from engine.files.sources.gguf.architectures.recurrent import DELTA_NET, DELTA_NET_EXACT, LATENT_KINDS
from engine.files.sources.gguf.architectures.shared import CHOICE_BIAS, DENSE_OR_SPARSE

_MIXTURES = [f"hc_{part}_{name}" for part in ("attn", "ffn") for name in ("fn", "base", "scale")]
_POOLED = {
    f"indexer_compressor_{name}.weight": f"self_attn.indexer.index_kpool_compress_{name}" for name in ("ape", "gate")
}

STREAMS = {
    "glm5-next": Architecture(
        "glm5_next_text",
        "Glm5NextForConditionalGeneration",
        config={
            **LATENT_CONFIG,
            **INDEX,
            "index_kpool": Key("attention.indexer.kpool"),
            "index_kpool_always_select_tail": Key("attention.indexer.kpool_select_tail", True),
            "linear_num_heads": Key("attention.head_count"),
            "linear_head_dim": Key("kda.head_dim"),
            "linear_conv_kernel_dim": Key("ssm.conv_kernel"),
            "linear_lower_bound": Key("kda.gate_lower_bound", None),
            "hc_mult": Key("hyper_connection.count"),
            "hc_sinkhorn_iters": Key("hyper_connection.sinkhorn_iterations"),
            "hc_eps": Key("hyper_connection.epsilon"),
            "swiglu_limit": Key("swiglu_clamp_exp"),
        },
        stems={**LATENT_STEMS, **INDEXER, **DELTA_NET},
        exact={**CHOICE_BIAS, **DELTA_NET_EXACT, **_POOLED, **{f"{name}.weight": name for name in _MIXTURES}},
        undo={**HEADS_APART, "ssm_a": LOGARITHM},
        words={
            "indexer_types": (Key("attention.indexer.types", None, listed=True), {True: "full", False: "shared"}),
            "scoring_func": (Key("expert_gating_func", SIGMOID_SCORES), {SIGMOID_SCORES: "sigmoid"}),
        },
        flags={"attention_bias": "attn_kv_a_mqa.bias"},
        kinds={**LATENT_KINDS, **DENSE_OR_SPARSE},
        latent=True,
    ),
}
