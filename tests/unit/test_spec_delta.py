"""Families with delta nets: published configurations, names of tensors, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import resolve, spec_from_config
from engine.spec.feed_forward import Moe, Router, Shared
from engine.spec.layout import Layout, Piece
from engine.spec.recurrent import DeltaNet
from engine.spec.rope import Rope
from engine.spec.schema import Spec
from tests.unit.published_configs import KIMI_LINEAR_48B_A3B, QWEN3_5_35B_A3B, QWEN3_NEXT_80B_A3B

Shapes = dict[str, tuple[str, tuple[int, ...]]]
HIDDEN, HEADS, KEY_HEADS, K_DIM, V_DIM, KERNEL = 24, 4, 2, 6, 5, 3
BASE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 12,
    "max_position_embeddings": 64,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": K_DIM,
    "linear_value_head_dim": V_DIM,
    "linear_conv_kernel_dim": KERNEL,
    "full_attention_interval": 2,
}
KEYS, VALUES = KEY_HEADS * K_DIM, HEADS * V_DIM


def kinds(spec: Spec) -> Counter[str]:
    return Counter(layer.mixer.kind if layer.mixer else "" for layer in spec.layers)


def mixers(spec: Spec) -> tuple[DeltaNet, Attention | LatentAttention]:
    """The delta net and the attention of a model that has one of each."""
    (delta,) = {layer.mixer for layer in spec.layers if isinstance(layer.mixer, DeltaNet)}
    (attention,) = {layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention | LatentAttention)}
    return delta, attention


# --- published models


def test_qwen3_next() -> None:
    spec = spec_from_config(QWEN3_NEXT_80B_A3B)
    assert kinds(spec) == {"delta_net": 36, "attention": 12}
    assert [layer.mixer.kind for layer in spec.layers[2:5] if layer.mixer] == ["delta_net", "attention", "delta_net"]
    delta, attention = mixers(spec)
    assert delta == DeltaNet(16, 32, 128, 128, 4, 128**-0.5, 1e-6)
    assert isinstance(attention, Attention)
    assert (attention.gated, attention.qk_norm, attention.rope) == (True, "head", Rope(1e7, 64, False, None))
    ffn = spec.layers[0].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.router, ffn.shared) == (Router(10, normalize=True), Shared(512, gated=True))


def test_qwen3_5_is_described_inside() -> None:
    spec = spec_from_config(QWEN3_5_35B_A3B)
    assert spec == spec_from_config(QWEN3_5_35B_A3B["text_config"])
    assert kinds(spec) == {"delta_net": 30, "attention": 10}
    assert (spec.vocab_size, spec.context_length, spec.tied_head) == (248320, 262144, False)
    _, attention = mixers(spec)
    assert attention.rope == Rope(1e7, 64, False, None)


def test_kimi_linear() -> None:
    spec = spec_from_config(KIMI_LINEAR_48B_A3B)
    assert kinds(spec) == {"delta_net": 20, "latent_attention": 7}
    assert [i for i, layer in enumerate(spec.layers) if isinstance(layer.mixer, LatentAttention)][-2:] == [23, 26]
    delta, attention = mixers(spec)
    assert delta == DeltaNet(32, 32, 128, 128, 4, 128**-0.5, 1e-5, "sigmoid", 128, 128)
    assert isinstance(attention, LatentAttention)
    assert (attention.rope, attention.q_lora_rank) == (None, 0)
    assert attention.scale == pytest.approx(192**-0.5)
    assert (spec.context_length, spec.moe_layers) == (1048576, tuple(range(1, 27)))
    ffn = spec.layers[1].ffn
    assert isinstance(ffn, Moe)
    assert ffn.router == Router(8, "sigmoid", normalize=True, scale=2.446, choice_bias=True)
    assert ffn.shared == Shared(1024)


@pytest.mark.parametrize("config", [QWEN3_NEXT_80B_A3B, QWEN3_5_35B_A3B, KIMI_LINEAR_48B_A3B])
def test_specs_survive_json(config: dict[str, Any]) -> None:
    spec = spec_from_config(config)
    assert Spec.from_json(spec.to_json()) == spec


# --- what is refused


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"layer_types": ["linear_attention"]}, UnsupportedError, "1 types of layers for 2"),
        ({"layer_types": ["linear_attention", "mamba"]}, UnsupportedError, "type 'mamba'"),
        ({"full_attention_interval": 0}, CorruptFileError, "does not say which layers"),
        ({"linear_num_value_heads": 5}, CorruptFileError, "5 value heads cannot share 2 key heads"),
        ({"linear_key_head_dim": 0}, CorruptFileError, "linear_key_head_dim must be positive"),
        ({"linear_conv_kernel_dim": 1}, CorruptFileError, "more than 1 tokens"),
        ({"linear_value_head_dim": None}, CorruptFileError, "lacks linear_value_head_dim"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias = True"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        spec_from_config(BASE | {"model_type": "qwen3_next"} | changes)


@pytest.mark.parametrize(
    ("inner", "error", "words"),
    [
        ({"kda_layers": [0, 1]}, CorruptFileError, r"numbers the layers \(0, 1\) of 27"),
        ({"kda_layers": [28]}, CorruptFileError, r"numbers the layers \(28,\) of 27"),
        ({"kda_layers": []}, CorruptFileError, "does not say which layers"),
        (
            {"num_heads": "32"},
            CorruptFileError,
            r"linear_attn_config\.num_heads in config\.json must be a whole number",
        ),
    ],
)
def test_numbered_layers_are_checked(inner: dict[str, Any], error: type[Exception], words: str) -> None:
    table = KIMI_LINEAR_48B_A3B["linear_attn_config"] | inner
    with pytest.raises(error, match=words):
        spec_from_config(KIMI_LINEAR_48B_A3B | {"linear_attn_config": table})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mla_use_nope": False}, "mla_use_nope = False"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"mlp_layer_types": ["dense", "odd"]}, "must call each of 27 layers dense or sparse"),
    ],
)
def test_settings_of_kimi_that_are_not_here(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((UnsupportedError, CorruptFileError), match=words):
        spec_from_config(KIMI_LINEAR_48B_A3B | changes)


# --- where the tensors lie


def qwen_tensors(prefix: str, parts: dict[str, tuple[int, ...]]) -> Shapes:
    """All tensors of BASE; `parts` are those of the delta net, which differ."""
    first, second = f"{prefix}layers.0.", f"{prefix}layers.1."
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (40, HIDDEN),
        f"{prefix}norm.weight": (HIDDEN,),
        "lm_head.weight": (40, HIDDEN),
        f"{first}linear_attn.conv1d.weight": (2 * KEYS + VALUES, 1, KERNEL),
        f"{first}linear_attn.A_log": (HEADS,),
        f"{first}linear_attn.dt_bias": (HEADS,),
        f"{first}linear_attn.norm.weight": (V_DIM,),
        f"{first}linear_attn.out_proj.weight": (HIDDEN, VALUES),
        f"{second}self_attn.q_proj.weight": (64, HIDDEN),
        f"{second}self_attn.k_proj.weight": (16, HIDDEN),
        f"{second}self_attn.v_proj.weight": (16, HIDDEN),
        f"{second}self_attn.o_proj.weight": (HIDDEN, 32),
        f"{second}self_attn.q_norm.weight": (8,),
        f"{second}self_attn.k_norm.weight": (8,),
    }
    shapes |= {f"{first}linear_attn.{name}.weight": shape for name, shape in parts.items()}
    for layer in (first, second):
        shapes |= {
            f"{layer}input_layernorm.weight": (HIDDEN,),
            f"{layer}post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}mlp.gate.weight": (3, HIDDEN),
            f"{layer}mlp.experts.gate_up_proj": (3, 40, HIDDEN),
            f"{layer}mlp.experts.down_proj": (3, HIDDEN, 20),
            f"{layer}mlp.shared_expert.gate_proj.weight": (12, HIDDEN),
            f"{layer}mlp.shared_expert.up_proj.weight": (12, HIDDEN),
            f"{layer}mlp.shared_expert.down_proj.weight": (HIDDEN, 12),
            f"{layer}mlp.shared_expert_gate.weight": (1, HIDDEN),
        }
    return {name: ("f32", shape) for name, shape in shapes.items()}


BY_HEADS = {"in_proj_qkvz": (2 * KEYS + 2 * VALUES, HIDDEN), "in_proj_ba": (2 * HEADS, HIDDEN)}
BY_KINDS = {
    "in_proj_qkv": (2 * KEYS + VALUES, HIDDEN),
    "in_proj_z": (VALUES, HIDDEN),
    "in_proj_b": (HEADS, HIDDEN),
    "in_proj_a": (HEADS, HIDDEN),
}
NEXT, NEXT_TENSORS = BASE | {"model_type": "qwen3_next"}, qwen_tensors("model.", BY_HEADS)
INSIDE = {"model_type": "qwen3_5_moe", "text_config": BASE | {"model_type": "qwen3_5_moe_text"}}
INSIDE_TENSORS = qwen_tensors("model.language_model.", BY_KINDS)


def pieces(made: Layout) -> dict[str, tuple[Piece, ...]]:
    return {item.name: item.pieces for item in (*made.matrices, *made.vectors)}


def rows(tensor: np.ndarray[Any, Any], cuts: tuple[Piece, ...]) -> np.ndarray[Any, Any]:
    return np.concatenate([tensor[cut.start : cut.stop or None] for cut in cuts])


def test_projections_are_cut_by_the_heads_that_share_a_key_head() -> None:
    """The cuts are those of Qwen's own `fix_query_key_value_ordering`."""
    made = pieces(resolve(NEXT, NEXT_TENSORS)[1])
    tensor = np.arange(2 * KEYS + 2 * VALUES)
    grouped = tensor.reshape(KEY_HEADS, -1)
    share = VALUES // KEY_HEADS
    expected = np.split(grouped, [K_DIM, 2 * K_DIM, 2 * K_DIM + share], axis=1)
    for key, values in zip(("q", "k", "v", "gate"), expected, strict=True):
        np.testing.assert_array_equal(rows(tensor, made[f"layers.0.delta.{key}"]), values.reshape(-1), err_msg=key)
    tensor = np.arange(2 * HEADS)
    beta, decay = np.split(tensor.reshape(KEY_HEADS, -1), 2, axis=1)
    np.testing.assert_array_equal(rows(tensor, made["layers.0.delta.beta"]), beta.reshape(-1))
    np.testing.assert_array_equal(rows(tensor, made["layers.0.delta.decay"]), decay.reshape(-1))


def test_queries_and_their_gates_take_turns() -> None:
    made = pieces(resolve(NEXT, NEXT_TENSORS)[1])
    name = "model.layers.1.self_attn.q_proj.weight"
    assert made["layers.1.attn.q"] == tuple(Piece(name, start=16 * head, stop=16 * head + 8) for head in range(4))
    assert made["layers.1.attn.gate"][1] == Piece(name, start=24, stop=32)


def test_norms_are_added_to_one_but_for_the_delta_nets() -> None:
    made = pieces(resolve(NEXT, NEXT_TENSORS)[1])
    added = {name for name, cuts in made.items() if cuts[0].plus == 1.0}
    norms = {f"layers.{layer}.{key}" for layer in range(2) for key in ("attn_norm", "ffn_norm")}
    assert added == norms | {"final_norm", "layers.1.attn.q_norm", "layers.1.attn.k_norm"}
    assert {cuts[0].plus for cuts in made.values()} == {0.0, 1.0}


def test_a_decoder_among_others_is_found_and_the_others_are_counted() -> None:
    others: Shapes = {"model.visual.blocks.0.attn.qkv.weight": ("f32", (4, 4)), "mtp.fc.weight": ("f32", (4, 4))}
    spec, made = resolve(INSIDE, INSIDE_TENSORS | others)
    assert made.left_out == {"vision": 1, "next-token": 1}
    assert pieces(made)["layers.0.delta.k"] == (
        Piece("model.language_model.layers.0.linear_attn.in_proj_qkv.weight", start=KEYS, stop=2 * KEYS),
    )
    alone, _ = resolve(INSIDE["text_config"], qwen_tensors("model.", BY_KINDS))
    assert spec == alone


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_a_head_that_is_promised_and_absent_is_missing(place: str) -> None:
    without = {name: info for name, info in INSIDE_TENSORS.items() if name != "lm_head.weight"}
    promise = {"tie_word_embeddings": False}
    config = INSIDE | (promise if place == "outside" else {"text_config": INSIDE["text_config"] | promise})
    with pytest.raises(CorruptFileError, match=r"no tensor lm_head\.weight"):
        resolve(config, without)


def test_convolutions_in_parts_become_one() -> None:
    config = KIMI_LINEAR_48B_A3B | {"num_hidden_layers": 1, "mlp_layer_types": ["dense"], "vocab_size": 40}
    config["linear_attn_config"] = {"kda_layers": [1], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4}
    layer, hidden = "model.layers.0.", 2304
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (40, hidden),
        f"{layer}self_attn.A_log": (1, 1, 2, 1),
        f"{layer}self_attn.dt_bias": (16,),
        f"{layer}self_attn.b_proj.weight": (2, hidden),
        f"{layer}self_attn.o_norm.weight": (8,),
        f"{layer}self_attn.o_proj.weight": (hidden, 16),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{layer}mlp.gate_proj.weight": (9216, hidden),
        f"{layer}mlp.up_proj.weight": (9216, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, 9216),
    }
    for part in "qkv":
        shapes |= {
            f"{layer}self_attn.{part}_proj.weight": (16, hidden),
            f"{layer}self_attn.{part}_conv1d.weight": (16, 1, 4),
        }
    for part in "fg":
        shapes |= {
            f"{layer}self_attn.{part}_a_proj.weight": (8, hidden),
            f"{layer}self_attn.{part}_b_proj.weight": (16, 8),
        }
    tensors: Shapes = {name: ("f32", shape) for name, shape in shapes.items()}
    made = pieces(resolve(config, tensors)[1])
    assert made["layers.0.delta.conv"] == tuple(Piece(f"{layer}self_attn.{part}_conv1d.weight") for part in "qkv")
    for name, shape in ((f"{layer}self_attn.k_conv1d.weight", (16, 1, 3)), (f"{layer}self_attn.A_log", (1, 3))):
        with pytest.raises(CorruptFileError, match=name.replace(".", r"\.")):
            resolve(config, tensors | {name: ("f32", shape)})
    del tensors[f"{layer}self_attn.v_conv1d.weight"]
    with pytest.raises(CorruptFileError, match=r"no tensor model\.layers\.0\.self_attn\.v_conv1d\.weight\."):
        resolve(config, tensors)


@pytest.mark.parametrize(("config", "tensors"), [(NEXT, NEXT_TENSORS), (INSIDE, INSIDE_TENSORS)])
def test_any_missing_tensor_is_named(config: dict[str, Any], tensors: Shapes) -> None:
    for name in tensors:
        if name == "lm_head.weight":  # else the embedding's matrix takes its place
            continue
        with pytest.raises(CorruptFileError) as caught:
            resolve(config, {other: info for other, info in tensors.items() if other != name})
        expected = name.replace("experts.gate_up_proj", "experts.0.gate_proj.weight")
        assert expected.replace("experts.down_proj", "experts.0.down_proj.weight") in caught.value.message
