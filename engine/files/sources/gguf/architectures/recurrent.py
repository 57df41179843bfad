"""Architectures some of whose layers keep a state: delta nets, state spaces, short convolutions."""

from __future__ import annotations

from dataclasses import replace

from engine.files.sources.gguf.architectures.latent import HEADS_APART, LATENT_ATTENTION, LATENT_HEADS
from engine.files.sources.gguf.architectures.record import (
    FLAT,
    LOGARITHM,
    ONE_ROW,
    PLUS_ONE,
    SIGMOID_SCORES,
    TILED_COLS,
    TILED_ROWS,
    TILED_VALUES,
    Architecture,
    Key,
)
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CONFIG,
    EVERY_CONFIG,
    EXPERT_WIDTH,
    EXPERTS,
    GRANITE,
    GRANITE_SHARED,
    GRANITE_SHARED_STACKED,
    GRANITE_STACKED,
    MIXTRAL,
    MLP,
    MOE,
    MULTIPLIERS,
    PAIRS,
    QK_NORM,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    TOP_K,
    WIDTH,
    by_number,
    experts,
    feed_forward,
)

# --- delta nets

_QWEN_DENSE_CONFIG = {
    **CONFIG,
    **WIDTH,
    "linear_conv_kernel_dim": Key("ssm.conv_kernel"),
    "linear_key_head_dim": Key("ssm.state_size"),
    "linear_num_key_heads": Key("ssm.group_count"),
    "linear_num_value_heads": Key("ssm.time_step_rank"),
}
_QWEN_CONFIG = {
    **_QWEN_DENSE_CONFIG,
    **EXPERTS,
    **EXPERT_WIDTH,
    "shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
}
_QWEN_MIXERS = {
    **ATTENTION,
    **QK_NORM,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN_STEMS = {**_QWEN_MIXERS, **MOE, **SHARED_EXPERT}
_QWEN_EXACT = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
_QWEN_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "output_norm.weight")
_QWEN_UNDO = {"ssm_a": LOGARITHM, "ffn_gate_inp_shexp": ONE_ROW, **dict.fromkeys(_QWEN_NORMS, PLUS_ONE)}
_QWEN_TILED = {
    **_QWEN_UNDO,
    **dict.fromkeys(("attn_qkv", "attn_gate", "ssm_conv1d"), TILED_ROWS),
    **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt.bias"), TILED_VALUES),
    "ssm_a": LOGARITHM + TILED_VALUES,
    "ssm_out": TILED_COLS,
}
_QWEN_KINDS = {"layer_types": (("ssm_a", "linear_attention"), ("attn_q.weight", "full_attention"))}
_QWEN_RATIOS = {"linear_value_head_dim": ("ssm.inner_size", "ssm.time_step_rank")}

DELTA_NET = {
    **{f"attn_{kind}": f"self_attn.{kind}_proj" for kind in ("k", "v")},
    **{f"ssm_conv1d_{kind}": f"self_attn.{kind}_conv1d" for kind in ("q", "k", "v")},
    "ssm_f_a": "self_attn.f_a_proj",
    "ssm_f_b": "self_attn.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj",
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}
DELTA_NET_EXACT = {"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias"}
LATENT_KINDS = {"layer_types": (("ssm_a", "linear_attention"), ("attn_kv_a_mqa.weight", "full_attention"))}
_LING_ATTENTION = {
    **{
        stem: name.replace("self_attn.o_proj", "attention.dense").replace("self_attn", "attention")
        for stem, name in LATENT_ATTENTION.items()
    },
    **{f"attn_{kind}": f"attention.{kind}_proj" for kind in ("q", "k", "v")},
}

# --- state spaces

_MAMBA_STEMS = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_out": "mamba.out_proj",
    "ssm_norm": "mamba.norm",
}
_MAMBA_EXACT = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"}
_MAMBA_UNDO = {"ssm_a": LOGARITHM, "ssm_d": FLAT, "ssm_norm": FLAT}
_MAMBA_2 = {
    "mamba_n_heads": Key("ssm.time_step_rank"),
    "mamba_n_groups": Key("ssm.group_count"),
    "mamba_d_state": Key("ssm.state_size"),
    "mamba_d_conv": Key("ssm.conv_kernel"),
}
_EXPANDED = {"mamba_expand": ("ssm.inner_size", "embedding_length")}
_ATTENDS = ("attn_q.weight", "attention")
_MAMBA_BIASES = {"mamba_proj_bias": "ssm_in.bias", "mamba_conv_bias": "ssm_conv1d.bias"}
_GRANITE_CONFIG = {
    **CONFIG,
    **MULTIPLIERS,
    **_MAMBA_2,
    "num_local_experts": Key("expert_count", 0),
    "num_experts_per_tok": Key("expert_used_count", 0),
    "intermediate_size": Key("feed_forward_length", largest=True),
    "shared_intermediate_size": Key("expert_shared_feed_forward_length"),
}
_GRANITE = Architecture(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    config=_GRANITE_CONFIG,
    stems={**ATTENTION, **_MAMBA_STEMS, **GRANITE, **GRANITE_SHARED},
    exact=_MAMBA_EXACT,
    stacked={**GRANITE_STACKED, **GRANITE_SHARED_STACKED},
    undo={**PAIRS, **_MAMBA_UNDO},
    words={"position_embedding_type": (Key("rope.scaling.finetuned", True), {True: "rope", False: "nope"})},
    ratios={**_EXPANDED, "mamba_d_head": ("ssm.inner_size", "ssm.time_step_rank")},
    flags={**ATTENTION_BIAS, **_MAMBA_BIASES},
    kinds={"layer_types": (("ssm_a", "mamba"), _ATTENDS)},
)

_NEMOTRON = Architecture(
    "nemotron_h",
    "NemotronHForCausalLM",
    config={
        **{name: key for name, key in CONFIG.items() if name != "rms_norm_eps"},
        "layer_norm_epsilon": Key("attention.layer_norm_epsilon", 1e-5),
        "mamba_num_heads": Key("ssm.time_step_rank"),
        "n_groups": Key("ssm.group_count"),
        "ssm_state_size": Key("ssm.state_size"),
        "conv_kernel": Key("ssm.conv_kernel"),
    },
    stems={
        "attn_norm": "norm",
        **{f"attn_{kind}": f"mixer.{kind}_proj" for kind in ("q", "k", "v")},
        "attn_output": "mixer.o_proj",
        **{f"ffn_{kind}": f"mixer.{kind}_proj" for kind in ("up", "down")},
        "ssm_in": "mixer.in_proj",
        "ssm_conv1d": "mixer.conv1d",
        "ssm_out": "mixer.out_proj",
        "ssm_norm": "mixer.norm",
    },
    exact={"ssm_a": "mixer.A_log", "ssm_d": "mixer.D", "ssm_dt.bias": "mixer.dt_bias"},
    outer={"token_embd.weight": "model.embeddings.weight", "output_norm.weight": "model.norm_f.weight"},
    undo={**PAIRS, **_MAMBA_UNDO},
    ratios={"mamba_head_dim": ("ssm.inner_size", "ssm.time_step_rank")},
    flags={"use_bias": "ssm_in.bias", "use_conv_bias": "ssm_conv1d.bias"},
    widths={"intermediate_size": "ffn_up.weight"},
    kinds={
        "layers_block_type": (
            ("ssm_a", "mamba"),
            _ATTENDS,
            ("ffn_gate_inp.weight", "moe"),
            ("ffn_up.weight", "mlp"),
        )
    },
)

RECURRENT = {
    "qwen3next": Architecture(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        config=_QWEN_CONFIG,
        stems=_QWEN_STEMS,
        exact=_QWEN_EXACT,
        undo=_QWEN_UNDO,
        ratios=_QWEN_RATIOS,
        kinds=_QWEN_KINDS,
        constants={"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
        partial=True,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        config=_QWEN_CONFIG,
        stems=_QWEN_STEMS,
        exact=_QWEN_EXACT,
        undo=_QWEN_TILED,
        ratios=_QWEN_RATIOS,
        kinds=_QWEN_KINDS,
        partial=True,
    ),
    "qwen35": Architecture(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        config=_QWEN_DENSE_CONFIG,
        stems={**_QWEN_MIXERS, **MLP},
        exact=_QWEN_EXACT,
        undo=_QWEN_TILED,
        ratios=_QWEN_RATIOS,
        kinds=_QWEN_KINDS,
        partial=True,
    ),
    "granitehybrid with experts": _GRANITE,
    "granitehybrid": Architecture(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        config=_GRANITE_CONFIG,
        stems={**ATTENTION, **_MAMBA_STEMS, "ffn_down": "shared_mlp.output_linear"},
        exact=_MAMBA_EXACT,
        stacked={"shared_mlp.input_linear.weight": ("ffn_gate.weight", "ffn_up.weight")},
        undo=_GRANITE.undo,
        words=_GRANITE.words,
        ratios=_GRANITE.ratios,
        flags=_GRANITE.flags,
        kinds=_GRANITE.kinds,
    ),
    "jamba": Architecture(
        "jamba",
        "JambaForCausalLM",
        config={
            **{name: key for name, key in CONFIG.items() if name != "rope_theta"},
            **WIDTH,
            **EXPERTS,
            "mamba_d_state": Key("ssm.state_size"),
            "mamba_d_conv": Key("ssm.conv_kernel"),
            "mamba_dt_rank": Key("ssm.time_step_rank"),
        },
        stems={
            **ATTENTION,
            "ffn_norm": "pre_ff_layernorm",
            **feed_forward("feed_forward"),
            **experts("feed_forward.experts", "feed_forward.router"),
            **_MAMBA_STEMS,
            "ssm_x": "mamba.x_proj",
            "ssm_dt": "mamba.dt_proj",
            "ssm_dt_norm": "mamba.dt_layernorm",
            "ssm_b_norm": "mamba.b_layernorm",
            "ssm_c_norm": "mamba.c_layernorm",
        },
        exact={"ssm_a": "mamba.A_log", "ssm_d": "mamba.D"},
        outer={"output_norm.weight": "model.final_layernorm.weight"},
        undo=_MAMBA_UNDO,
        ratios=_EXPANDED,
        flags=_MAMBA_BIASES,
        kinds={
            "layer_types": (("ssm_a", "mamba"), _ATTENDS),
            "mlp_layer_types": (("ffn_gate_inp.weight", "sparse"), ("ffn_gate.weight", "dense")),
        },
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(
        _NEMOTRON,
        config={
            **_NEMOTRON.config,
            "n_routed_experts": Key("expert_count", 0),
            **TOP_K,
            "moe_intermediate_size": Key("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
            "moe_latent_size": Key("moe_latent_size", 0),
            "n_group": Key("expert_group_count", 1),
            "topk_group": Key("expert_group_used_count", 1),
            "norm_topk_prob": Key("expert_weights_norm", True),
            "routed_scaling_factor": Key("expert_weights_scale", 1.0),
        },
        stems={
            **_NEMOTRON.stems,
            "ffn_gate_inp": "mixer.gate",
            **{f"ffn_{kind}_exps": f"mixer.experts.{{expert}}.{kind}_proj" for kind in ("up", "down")},
            **{f"ffn_{kind}_shexp": f"mixer.shared_experts.{kind}_proj" for kind in ("up", "down")},
            "ffn_latent_down": "mixer.fc1_latent_proj",
            "ffn_latent_up": "mixer.fc2_latent_proj",
        },
        exact={**_NEMOTRON.exact, "exp_probs_b.bias": "mixer.gate.e_score_correction_bias"},
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        config={
            **{name: key for name, key in CONFIG.items() if name != "rms_norm_eps"},
            "norm_eps": Key("attention.layer_norm_rms_epsilon"),
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            "num_dense_layers": Key("leading_dense_block_count", 0),
            "conv_L_cache": Key("shortconv.l_cache"),
        },
        stems={
            "attn_norm": "operator_norm",
            "ffn_norm": "ffn_norm",
            **{f"attn_{kind}": f"self_attn.{kind}_proj" for kind in ("q", "k", "v")},
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.conv": "conv.conv",
            "shortconv.out_proj": "conv.out_proj",
            **by_number("feed_forward"),
            "ffn_gate_inp": "feed_forward.gate",
            **by_number("feed_forward.experts.{expert}", "_exps"),
        },
        exact={"exp_probs_b.bias": "feed_forward.expert_bias"},
        outer={
            "output_norm.weight": "model.embedding_norm.weight",
            "token_embd_norm.weight": "model.embedding_norm.weight",
        },
        constants={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
        flags={"use_expert_bias": "exp_probs_b.bias", "conv_bias": "shortconv.conv.bias"},
        kinds={"layer_types": (("shortconv.conv.weight", "conv"), ("attn_q.weight", "full_attention"))},
    ),
    "bailingmoe3": Architecture(
        "bailing_hybrid",
        "BailingHybridForCausalLM",
        config={
            **EVERY_CONFIG,
            **WIDTH,
            **EXPERT_WIDTH,
            **LATENT_HEADS,
            **EXPERTS,
            "num_shared_experts": Key("expert_shared_count", 1),
            "first_k_dense_replace": Key("leading_dense_block_count", 0),
            "n_group": Key("expert_group_count", 1),
            "topk_group": Key("expert_group_used_count", 1),
            "norm_topk_prob": Key("expert_weights_norm", False),
            "routed_scaling_factor": Key("expert_weights_scale", 1.0),
            "linear_num_heads": Key("attention.head_count", largest=True),
            "linear_head_dim": Key("kda.head_dim"),
            "linear_conv_kernel_dim": Key("ssm.conv_kernel"),
            "kda_safe_gate": Key("kda.safe_gate"),
            "kda_lower_bound": Key("kda.gate_lower_bound"),
        },
        stems={
            **_LING_ATTENTION,
            **MLP,
            **MOE,
            **SHARED_EXPERTS,
            **{f"ssm_conv1d_{kind}": f"attention.{kind}_conv1d" for kind in ("q", "k", "v")},
            "attn_gate": "attention.g_proj",
            "ssm_f_a": "attention.f_proj",
            "ssm_g_a": "attention.g_proj",
            "ssm_beta": "attention.b_proj",
            "ssm_norm": "attention.o_norm",
        },
        exact={
            "ssm_a": "attention.A_log",
            "ssm_dt.bias": "attention.dt_bias",
            "exp_probs_b.bias": "mlp.gate.expert_bias",
        },
        outer={"token_embd.weight": "model.word_embeddings.weight"},
        undo={**HEADS_APART, "ssm_a": LOGARITHM},
        words={
            "score_function": (Key("expert_gating_func"), {SIGMOID_SCORES: "sigmoid"}),
            **{f"no_{name}": (Key(name, None), {0.0: None}) for name in ("swiglu_clamp_exp", "swiglu_clamp_shexp")},
        },
        kinds=LATENT_KINDS,
        latent=True,
    ),
    "kimi-linear": Architecture(
        "kimi_linear",
        "KimiLinearForCausalLM",
        config={
            **EVERY_CONFIG,
            **WIDTH,
            **EXPERT_WIDTH,
            **LATENT_HEADS,
            **EXPERTS,
            "num_shared_experts": Key("expert_shared_count", 0),
            "first_k_dense_replace": Key("leading_dense_block_count", 0),
            "moe_renormalize": Key("expert_weights_norm", True),
            "routed_scaling_factor": Key("expert_weights_scale", 1.0),
            "linear_num_heads": Key("attention.head_count", largest=True),
            "linear_head_dim": Key("kda.head_dim"),
            "linear_conv_kernel_dim": Key("ssm.conv_kernel"),
        },
        stems={
            **LATENT_ATTENTION,
            **DELTA_NET,
            **MLP,
            **MIXTRAL,
            **feed_forward("block_sparse_moe.shared_experts", "_shexp"),
        },
        exact={**DELTA_NET_EXACT, "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias"},
        undo={**HEADS_APART, "ssm_a": LOGARITHM},
        kinds=LATENT_KINDS,
        latent=True,
    ),
}
