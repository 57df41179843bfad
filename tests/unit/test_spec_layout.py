"""From tensor names to layouts: every form of a family, what is missing, what is left over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.families import FAMILIES, layout, resolve, spec_from_config
from engine.spec.layout import ExpertRecord, Layout, Matrix, Piece, Vector
from engine.spec.residual import Residual

Shapes = dict[str, tuple[str, tuple[int, ...]]]
LAYER = "model.layers.0."
BASE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "moe_intermediate_size": 20,
    "max_position_embeddings": 64,
}
QWEN3_MOE = BASE | {"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2}
MIXTRAL = BASE | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
GRANITE = BASE | {"model_type": "granitemoe", "num_local_experts": 3, "num_experts_per_tok": 2}
GPT_OSS = BASE | {"model_type": "gpt_oss", "num_local_experts": 3, "num_experts_per_tok": 2}
DEEPSEEK = BASE | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}


def f32(shapes: dict[str, tuple[int, ...]]) -> Shapes:
    return {name: ("f32", shape) for name, shape in shapes.items()}


def attention(*extra: str) -> Shapes:
    """Tensors outside the experts. `extra`: of head_dim values each."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, 24),
        "model.norm.weight": (24,),
        "lm_head.weight": (40, 24),
        LAYER + "input_layernorm.weight": (24,),
        LAYER + "post_attention_layernorm.weight": (24,),
        LAYER + "self_attn.q_proj.weight": (24, 24),
        LAYER + "self_attn.k_proj.weight": (12, 24),
        LAYER + "self_attn.v_proj.weight": (12, 24),
        LAYER + "self_attn.o_proj.weight": (24, 24),
    }
    return f32(shapes | {LAYER + name: (6,) for name in extra})


def experts(template: str, gate: str, up: str, down: str) -> Shapes:
    """One tensor each for three experts."""
    shapes: dict[str, tuple[int, ...]] = {}
    for expert in range(3):
        prefix = LAYER + template.format(expert) + "."
        shapes |= {prefix + gate: (20, 24), prefix + up: (20, 24), prefix + down: (24, 20)}
    return f32(shapes)


QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
PER_EXPERT = experts("mlp.experts.{}", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
FUSED = f32({LAYER + "mlp.experts.gate_up_proj": (3, 40, 24), LAYER + "mlp.experts.down_proj": (3, 24, 20)})
QWEN3_TENSORS = attention(*QK_NORMS) | f32({LAYER + "mlp.gate.weight": (3, 24)}) | PER_EXPERT


def expert(made: Layout, number: int) -> dict[str, tuple[Piece, ...]]:
    record: ExpertRecord = made.experts[number]
    items: tuple[Matrix | Vector, ...] = (*record.matrices, *record.vectors)
    return {item.name: item.pieces for item in items}


def test_one_tensor_an_expert() -> None:
    _, made = resolve(QWEN3_MOE, QWEN3_TENSORS)
    assert [(record.layer, record.expert) for record in made.experts] == [(0, 0), (0, 1), (0, 2)]
    assert expert(made, 1)["up"] == (Piece(LAYER + "mlp.experts.1.up_proj.weight"),)
    assert [(m.rows, m.cols) for m in made.experts[1].matrices] == [(20, 24), (20, 24), (24, 20)]


def test_all_experts_in_one_tensor() -> None:
    tensors = {name: info for name, info in QWEN3_TENSORS.items() if name not in PER_EXPERT}
    _, made = resolve(QWEN3_MOE, tensors | FUSED)
    fused = LAYER + "mlp.experts.gate_up_proj"
    assert expert(made, 2)["gate"] == (Piece(fused, index=2, start=0, stop=20),)
    assert expert(made, 2)["up"] == (Piece(fused, index=2, start=20, stop=40),)
    assert expert(made, 2)["down"] == (Piece(LAYER + "mlp.experts.down_proj", index=2),)


def test_mixtral_under_its_own_names_and_fused() -> None:
    outer = attention() | f32({LAYER + "block_sparse_moe.gate.weight": (3, 24)})
    own = experts("block_sparse_moe.experts.{}", "w1.weight", "w3.weight", "w2.weight")
    _, made = resolve(MIXTRAL, outer | own)
    named = {key: pieces[0].tensor.removeprefix(LAYER) for key, pieces in expert(made, 1).items()}
    assert named == {
        "gate": "block_sparse_moe.experts.1.w1.weight",
        "up": "block_sparse_moe.experts.1.w3.weight",
        "down": "block_sparse_moe.experts.1.w2.weight",
    }
    _, made = resolve(MIXTRAL, outer | FUSED)
    assert expert(made, 1)["down"] == (Piece(LAYER + "mlp.experts.down_proj", index=1),)


def test_granite_input_and_output() -> None:
    tensors = attention() | f32(
        {
            LAYER + "block_sparse_moe.router.layer.weight": (3, 24),
            LAYER + "block_sparse_moe.input_linear.weight": (3, 40, 24),
            LAYER + "block_sparse_moe.output_linear.weight": (3, 24, 20),
        }
    )
    _, made = resolve(GRANITE, tensors)
    assert expert(made, 0)["up"][0].start == 20


GPT_OSS_OUTER = (
    attention()
    | f32(
        {LAYER + f"self_attn.{name}_proj.bias": (width,) for name, width in zip("qkvo", (24, 12, 12, 24), strict=True)}
    )
    | f32({LAYER + "self_attn.sinks": (4,), LAYER + "mlp.router.weight": (3, 24), LAYER + "mlp.router.bias": (3,)})
)
GPT_OSS_FUSED = f32(
    {
        LAYER + "mlp.experts.gate_up_proj": (3, 24, 40),
        LAYER + "mlp.experts.gate_up_proj_bias": (3, 40),
        LAYER + "mlp.experts.down_proj": (3, 20, 24),
        LAYER + "mlp.experts.down_proj_bias": (3, 24),
    }
)


def test_gpt_oss_transposed_and_interleaved() -> None:
    _, made = resolve(GPT_OSS, GPT_OSS_OUTER | GPT_OSS_FUSED)
    fused = LAYER + "mlp.experts.gate_up_proj"
    assert expert(made, 2) == {
        "gate": (Piece(fused, index=2, transpose=True, start=0, step=2),),
        "up": (Piece(fused, index=2, transpose=True, start=1, step=2),),
        "down": (Piece(LAYER + "mlp.experts.down_proj", index=2, transpose=True),),
        "gate_bias": (Piece(fused + "_bias", index=2, start=0, step=2),),
        "up_bias": (Piece(fused + "_bias", index=2, start=1, step=2),),
        "down_bias": (Piece(LAYER + "mlp.experts.down_proj_bias", index=2),),
    }


def test_gpt_oss_one_tensor_an_expert_may_be_quantised() -> None:
    biases = {name.replace("weight", "bias"): ("f32", shape[:1]) for name, (_, shape) in PER_EXPERT.items()}
    quantised = {name: ("mxfp4", shape) for name, (_, shape) in PER_EXPERT.items()}
    _, made = resolve(GPT_OSS, GPT_OSS_OUTER | quantised | biases)
    assert expert(made, 1)["down_bias"] == (Piece(LAYER + "mlp.experts.1.down_proj.bias"),)


def test_a_quantised_tensor_is_not_transposed() -> None:
    fused = GPT_OSS_FUSED | {LAYER + "mlp.experts.down_proj": ("q8_0", (3, 20, 24))}
    with pytest.raises(UnsupportedError, match=r"down_proj is in q8_0, and would have to be transposed"):
        resolve(GPT_OSS, GPT_OSS_OUTER | fused)


DEEPSEEK_TENSORS = (
    {name: info for name, info in attention().items() if "self_attn" not in name}
    | f32(
        {
            LAYER + "self_attn.q_a_proj.weight": (10, 24),
            LAYER + "self_attn.q_a_layernorm.weight": (10,),
            LAYER + "self_attn.q_b_proj.weight": (40, 10),
            LAYER + "self_attn.kv_a_proj_with_mqa.weight": (12, 24),
            LAYER + "self_attn.kv_a_layernorm.weight": (8,),
            LAYER + "self_attn.kv_b_proj.weight": (44, 8),
            LAYER + "self_attn.o_proj.weight": (24, 20),
            LAYER + "mlp.gate.weight": (3, 24),
            LAYER + "mlp.gate.e_score_correction_bias": (3,),
            LAYER + "mlp.shared_experts.gate_proj.weight": (20, 24),
            LAYER + "mlp.shared_experts.up_proj.weight": (20, 24),
            LAYER + "mlp.shared_experts.down_proj.weight": (24, 20),
        }
    )
    | PER_EXPERT
)


def test_latent_attention_is_cut_by_rows_and_heads() -> None:
    _, made = resolve(DEEPSEEK, DEEPSEEK_TENSORS)
    pieces = {matrix.name.removeprefix("layers.0."): matrix for matrix in made.matrices}
    kv_a, kv_b = LAYER + "self_attn.kv_a_proj_with_mqa.weight", LAYER + "self_attn.kv_b_proj.weight"
    assert pieces["attn.kv_a"].pieces == (Piece(kv_a, start=0, stop=8),)
    assert pieces["attn.k_rope"].pieces == (Piece(kv_a, start=8, stop=12),)
    assert pieces["attn.k_up"].pieces[1] == Piece(kv_b, transpose=True, col_start=11, col_stop=17)
    assert pieces["attn.v_up"].pieces[1] == Piece(kv_b, start=17, stop=22)
    # the cuts are those of DeepSeek's own split of kv_b: every head has its keys' rows, then its values'
    tensor = np.arange(44 * 8).reshape(44, 8)
    by_head = tensor.reshape(4, 11, 8)
    k_up = np.concatenate([tensor.T[:, p.col_start : p.col_stop] for p in pieces["attn.k_up"].pieces])
    v_up = np.concatenate([tensor[p.start : p.stop] for p in pieces["attn.v_up"].pieces])
    np.testing.assert_array_equal(k_up.reshape(4, 8, 6), by_head[:, :6].swapaxes(1, 2))
    np.testing.assert_array_equal(v_up.reshape(4, 5, 8), by_head[:, 6:])
    assert (pieces["attn.k_up"].rows, pieces["attn.k_up"].cols) == (32, 6)


@pytest.mark.parametrize(("form", "plain"), [("f32", False), ("bf16", False), ("fp8", False), ("q4_0", True)])
def test_a_latent_key_is_read_as_plain_values_where_it_cannot_be_turned_over(form: str, plain: bool) -> None:
    name = LAYER + "self_attn.kv_b_proj.weight"
    _, made = resolve(DEEPSEEK, DEEPSEEK_TENSORS | {name: (form, (44, 8))})
    matrices = {matrix.name.removeprefix("layers.0."): matrix for matrix in made.matrices}
    assert {piece.plain for piece in matrices["attn.k_up"].pieces} == {plain}
    assert {piece.plain for piece in matrices["attn.v_up"].pieces} == {False}


# --- heads


def test_the_checkpoint_decides_whether_the_head_is_tied() -> None:
    without = {name: info for name, info in QWEN3_TENSORS.items() if name != "lm_head.weight"}
    for flag, tensors, tied in ((None, without, True), (True, without, True), (True, QWEN3_TENSORS, False)):
        spec, made = resolve(QWEN3_MOE | {"tie_word_embeddings": flag}, tensors)
        assert spec.tied_head is tied
        assert ("head" in {matrix.name for matrix in made.matrices}) is not tied


def test_a_head_that_is_promised_and_absent_is_missing() -> None:
    without = {name: info for name, info in QWEN3_TENSORS.items() if name != "lm_head.weight"}
    with pytest.raises(CorruptFileError, match=r"no tensor lm_head\.weight"):
        resolve(QWEN3_MOE | {"tie_word_embeddings": False}, without)


# --- what does not fit


@pytest.mark.parametrize("name", sorted(QWEN3_TENSORS))
def test_any_missing_tensor_is_named(name: str) -> None:
    tensors = {other: info for other, info in QWEN3_TENSORS.items() if other != name}
    with pytest.raises(CorruptFileError) as caught:
        resolve(QWEN3_MOE | {"tie_word_embeddings": False}, tensors)
    assert caught.value.message == f"The checkpoint has no tensor {name}."


def test_missing_tensors_are_counted() -> None:
    tensors = {name: info for name, info in QWEN3_TENSORS.items() if ".experts.1." not in name}
    with pytest.raises(CorruptFileError, match=r"experts\.1\.gate_proj\.weight \(and 2 more\)"):
        resolve(QWEN3_MOE, tensors)


@pytest.mark.parametrize("name", sorted(QWEN3_TENSORS))
def test_any_wrong_shape_is_named(name: str) -> None:
    codec, shape = QWEN3_TENSORS[name]
    with pytest.raises(CorruptFileError) as caught:
        resolve(QWEN3_MOE, QWEN3_TENSORS | {name: (codec, (shape[0] + 1, *shape[1:]))})
    assert name in caught.value.message
    assert str(list(shape)) in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        LAYER + "self_attn.q_proj.bias",
        LAYER + "mlp.experts.3.up_proj.weight",
        LAYER + "mlp.experts.0.up_proj.weight_scale_inv",
        "model.layers.1.input_layernorm.weight",
        "adapter.weight",
    ],
)
def test_a_tensor_that_no_rule_explains_is_named(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve(QWEN3_MOE, QWEN3_TENSORS | {name: ("f32", (1,))})
    assert name in caught.value.message


@pytest.mark.parametrize(
    ("config", "tensors", "name"),
    [
        (QWEN3_MOE, QWEN3_TENSORS, LAYER + "self_attn.rotary_emb.inv_freq"),
        (QWEN3_MOE, QWEN3_TENSORS, "model.vision_tower.blocks.0.weight"),
        (DEEPSEEK, DEEPSEEK_TENSORS, "model.layers.1.eh_proj.weight"),
        (DEEPSEEK, DEEPSEEK_TENSORS, "model.layers.1.mlp.experts.0.up_proj.weight"),
    ],
)
def test_tensors_of_no_use_here_are_skipped_by_rule(config: dict[str, Any], tensors: Shapes, name: str) -> None:
    resolve(config, tensors | {name: ("f32", (1,))})


def test_layout_of_a_spec_follows_the_spec() -> None:
    spec = spec_from_config(QWEN3_MOE)
    assert layout(spec, QWEN3_TENSORS) == resolve(QWEN3_MOE, QWEN3_TENSORS)[1]
    with pytest.raises(UnsupportedError, match="'nonsense'"):
        layout(replace(spec, family="nonsense"), QWEN3_TENSORS)


def _norms(residual: Residual) -> set[str]:
    before = {"attn_norm"} if residual.is_parallel else {"attn_norm", "ffn_norm"}
    after = {"attn_post_norm", "ffn_post_norm"} if residual.norms_after else set()
    return after | (before if residual.norms_before else set())


def test_every_family_names_every_tensor_it_can_need() -> None:
    """A spec's keys without a source would surface as an error at a user's desk; here it surfaces first."""
    for family in FAMILIES.values():
        held = {key for source in family.names.sources for key in source.holds}
        residual = family.residual if isinstance(family.residual, Residual) else Residual("normed")
        assert {"embed", "head", "final_norm", "attn.q", "attn.o", *_norms(residual)} <= held, family.name
        if family.moe is not None:
            gate = {"gate"} if "relu2" not in family.activations.values() else set()
            assert {"router", "up", "down"} | gate <= held, family.name
