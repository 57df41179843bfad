"""Programs are well formed: names, widths, weights and storage fit together, in every family."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.program.ir import Buffer, Op, Program
from engine.program.lowering.lifetimes import share_storage
from engine.program.lowering.lower import lower
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import FAMILIES, spec_from_config
from engine.spec.families.attention_rules import FULL, SLIDING
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.spec.tensors import layer_tensors, outer_tensors
from engine.spec.wanted import Wanted, tensor_name

CONFIG: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "max_position_embeddings": 256,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "mlp_only_layers": [1],
    "sliding_window": 8,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_num_heads": 3,
    "linear_head_dim": 10,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
    "linear_attn_config": {"kda_layers": [1, 3]},
    "tie_word_embeddings": True,
}


OF_FAMILY: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"n_group": 1, "topk_group": 1},
    "deepseek_v32": {"n_group": 1, "topk_group": 1},
    "axk1": {"n_group": 1, "topk_group": 1},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 24,
        "mamba_n_heads": 5,
        "mamba_d_state": 14,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "longcat_flash": {
        "num_layers": 2,
        "zero_expert_num": 3,
        "moe_topk": 2,
        "ffn_hidden_size": 56,
        "expert_ffn_hidden_size": 24,
    },
    "minimax": {"sliding_window": None, "attn_type_list": [0, 1, 0]},
    "jamba": {"sliding_window": None, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 6},
    "nemotron_h": {
        "sliding_window": None,
        "hybrid_override_pattern": "M*E-",
        "mamba_num_heads": 6,
        "mamba_head_dim": 7,
        "ssm_state_size": 5,
        "n_groups": 3,
        "moe_shared_expert_intermediate_size": 28,
    },
    "gemma3": {"head_dim": 10},
    "gemma4": {
        "head_dim": 10,
        "global_head_dim": 14,
        "enable_moe_block": True,
        "top_k_experts": 2,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 100,
    },
    "llama4": {"num_experts_per_tok": 1, "intermediate_size_mlp": 60, "attention_chunk_size": 8},
    "glm4_moe": {"partial_rotary_factor": 0.6},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 20,
        "o_groups": 2,
        "o_lora_rank": 9,
        "compress_ratios": [0, 4, 128],
        "index_n_heads": 3,
        "index_head_dim": 14,
        "index_topk": 7,
        "hc_mult": 3,
        "num_hash_layers": 1,
        "tie_word_embeddings": False,
    },
    "solar_open": {"first_k_dense_replace": 0},
    "minimax_m3_vl": {
        "index_n_heads": 2,
        "shared_intermediate_size": 24,
        "dense_intermediate_size": 60,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "sliding_window": None,
    },
    **{name: {"layer_types": [FULL, SLIDING, FULL]} for name in ("flint", "laguna", "mellum", "step3p5")},
    "lara_mini": {"layer_types": ["linear_attention", SLIDING, FULL]},
    "glm5_next": {
        "qk_rope_head_dim": 0,
        "index_n_heads": 3,
        "index_head_dim": 14,
        "index_topk": 8,
        "index_kpool": 4,
        "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
        "hc_mult": 3,
    },
    "mimo_v2_flash": {
        "n_shared_experts": None,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "head_dim": 20,
        "partial_rotary_factor": 0.6,
        "hybrid_layer_pattern": [0, 1, 1],
    },
}


def spec_of(family: str, **changes: Any) -> Spec:
    return spec_from_config({**CONFIG, "model_type": family, **OF_FAMILY.get(family, {}), **changes})


def wanted_by_name(spec: Spec) -> dict[str, Wanted]:
    named = {wanted.key: wanted for wanted in outer_tensors(spec)}
    for layer in range(len(spec.layers)):
        named |= {tensor_name(wanted.key, layer): wanted for wanted in layer_tensors(spec, layer)}
    return named


@pytest.fixture(params=sorted(FAMILIES))
def spec(request: pytest.FixtureRequest) -> Spec:
    return spec_of(request.param)


def test_every_dense_tensor_is_used_and_no_other(spec: Spec) -> None:
    used = Counter(name for op in lower(spec).ops for name in op.weights if name)
    assert set(used) == set(wanted_by_name(spec))
    assert {name for name, count in used.items() if count > 1} == ({"embed"} if spec.tied_head else set())


def test_products_have_the_widths_of_their_matrices(spec: Spec) -> None:
    program, wanted = lower(spec), wanted_by_name(spec)
    for op in program.ops:
        if op.kind != "linear":
            continue
        for out, matrix, bias in zip(op.writes, op.weights[::2], op.weights[1::2], strict=True):
            assert wanted[matrix].cols == program.buffers[op.reads[0]].width, matrix
            assert wanted[matrix].rows == program.buffers[out].width, matrix
            assert not bias or wanted[bias].cols == program.buffers[out].width, bias


def test_norms_have_weights_of_their_groups_width(spec: Spec) -> None:
    program, wanted = lower(spec), wanted_by_name(spec)
    for op in program.ops:
        if op.kind == "rms_norm":
            width = program.buffers[op.writes[0]].width
            assert not op.weights[0] or wanted[op.weights[0]].cols == op.attrs["group"]
            assert width % int(op.attrs["group"]) == 0
            assert program.buffers[op.reads[0]].width == width


def test_runs_of_heads_lie_inside_their_buffers(spec: Spec) -> None:
    program, wanted = lower(spec), wanted_by_name(spec)
    for op in program.ops:
        if op.kind in ("head_linear", "head_copy"):
            heads = int(op.attrs["heads"])
            matrix = wanted.get(op.weights[0]) if op.weights else None
            widths = (matrix.cols, matrix.rows // heads) if matrix else (int(op.attrs["width"]),) * 2
            for buffer, side, width in ((op.reads[0], "in", widths[0]), (op.writes[0], "out", widths[1])):
                stride, offset = int(op.attrs[f"{side}_stride"]), int(op.attrs[f"{side}_offset"])
                assert offset + width <= stride
                assert heads * stride == program.buffers[buffer].width
        if op.kind == "rope":
            stride, end = int(op.attrs["stride"]), int(op.attrs["offset"]) + int(op.attrs["dim"])
            assert end <= stride
            assert int(op.attrs["heads"]) * stride == program.buffers[op.writes[0]].width
            assert len(program.ropes[int(op.attrs["table"])].inv_freq) * 2 == op.attrs["dim"]


def test_attention_fits_its_cache(spec: Spec) -> None:
    program = lower(spec)
    attentions = [op for op in program.ops if op.kind == "attention"]
    attending = [layer for layer in spec.layers if isinstance(layer.mixer, Attention | LatentAttention)]
    assert len(attentions) == len(attending)
    keeping = [op for op in program.ops if op.kind == "choose" or (op.kind == "attention" and len(op.reads) > 1)]
    beside = [op for op in program.ops if op.kind == "compressed_attention"]
    caches = [op.attrs["cache"] for op in (*keeping, *beside)]
    caches += [op.attrs["entries"] for op in beside if len(op.reads) > 2]
    assert sorted(caches) == list(range(len(program.caches))), "one operation keeps what is in a cache"
    for op in attentions:
        cache = program.caches[int(op.attrs["cache"])]
        q, *kept = (program.buffers[name].width for name in op.reads[:3] if name)
        assert q == int(op.attrs["heads"]) * cache.k_dim
        assert kept in ([], [cache.kv_heads * width for width in (cache.k_dim, cache.v_dim) if width])
        assert program.buffers[op.writes[0]].width == int(op.attrs["heads"]) * int(op.attrs["v_dim"])


def test_layers_end_after_their_operations(spec: Spec) -> None:
    program = lower(spec)
    layers = [op.layer for op in program.ops]
    ends = [layers.index(layer) + layers.count(layer) for layer in range(len(spec.layers))]
    assert list(program.layer_ends) == ends
    assert all(program.ops[end - 1].writes == (program.residual,) for end in ends)
    experts = [op for op in program.ops if op.kind == "experts"]
    assert [op.attrs["layer"] for op in experts] == list(range(len(spec.moe_layers)))
    assert [op.layer for op in experts] == list(spec.moe_layers)


def test_only_the_head_computes_wanted_rows_alone(spec: Spec) -> None:
    program = lower(spec)
    kinds = [op.kind for op in program.ops if any(program.buffers[name].domain == "row" for name in op.writes)]
    norm = "rms_norm" if spec.norm.kind == "rms" else "layer_norm"
    weighed, mean = ["rms_norm", "linear", "stream_weights", "collapse"], ["add", "add", "scale"]  # of three streams
    mixing = [] if spec.streams is None else weighed if spec.streams.weighed_at_the_end else mean
    assert kinds == ["select", *mixing, norm, "linear"] + (["bound"] if spec.logit_softcap else [])
    assert program.buffers[program.output].width == spec.vocab_size


# --- storage


def _cells(buffers: dict[str, Buffer], name: str) -> list[tuple[str, int]]:
    """The places that a buffer's columns occupy."""
    buffer = buffers[name]
    return [(buffer.base or name, buffer.offset + column) for column in range(buffer.width)]


def _values_read(program: Program, buffers: dict[str, Buffer]) -> list[list[int]]:
    """For each operation the writers whose values it finds in what it reads, column by column."""
    writer: dict[tuple[str, int], int] = {}
    found = []
    for index, op in enumerate(program.ops):
        found.append([writer.get(cell, -1) for name in op.reads if name for cell in _cells(buffers, name)])
        for name in op.writes:
            writer |= dict.fromkeys(_cells(buffers, name), index)
    return found


def _unshared(program: Program) -> dict[str, Buffer]:
    """The program's buffers, each with storage of its own; views inside a buffer are named `buffer.part`."""
    own = {}
    for name, buffer in program.buffers.items():
        root = name.rpartition(".")[0]
        is_part = root in program.buffers and not name.rpartition(".")[2].isdigit()
        own[name] = Buffer(buffer.width, buffer.domain, buffer.dtype, root if is_part else "", buffer.offset)
    return own


def test_shared_storage_never_changes_what_an_operation_reads(spec: Spec) -> None:
    program = lower(spec)
    assert _values_read(program, dict(program.buffers)) == _values_read(program, _unshared(program))


def test_an_operation_never_writes_over_another_of_its_inputs(spec: Spec) -> None:
    program = lower(spec)
    for op in program.ops:
        for out in op.writes:
            written = set(_cells(dict(program.buffers), out))
            for name in filter(None, (*op.reads, *op.writes)):
                assert name == out or not written & set(_cells(dict(program.buffers), name)), (op.kind, name, out)


def test_storage_is_shared(spec: Spec) -> None:
    program = lower(spec)

    def width(buffers: dict[str, Buffer]) -> int:
        return sum(buffer.width for buffer in buffers.values() if not buffer.base and buffer.domain == "token")

    assert width(dict(program.buffers)) < width(_unshared(program))


def test_views_point_at_storage_and_lie_inside_it(spec: Spec) -> None:
    buffers = lower(spec).buffers
    for buffer in buffers.values():
        if buffer.base:
            base = buffers[buffer.base]
            assert not base.base
            assert buffer.offset + buffer.width <= base.width
            assert (buffer.domain, buffer.dtype) == (base.domain, base.dtype)


def test_buffers_that_are_alive_together_keep_apart() -> None:
    """The check above would notice: two buffers whose lifetimes cross do not share."""
    buffers = {name: Buffer(4) for name in ("x", "a", "b", "c")}
    ops = [
        Op("linear", ("x",), ("a",), layer=0),
        Op("linear", ("x",), ("b",), layer=0),
        Op("add", ("a", "b"), ("x",), layer=0),
        Op("linear", ("x",), ("c",), layer=0),
    ]
    shared = share_storage(buffers, ops, keep=("x",))
    assert not shared["a"].base
    assert not shared["b"].base
    assert shared["c"].base in ("a", "b")


# --- details


def test_heads_of_other_widths_get_buffers_of_their_own() -> None:
    spec = spec_of("deepseek_v3")
    widths = {name: buffer.width for name, buffer in lower(spec).buffers.items() if name.startswith("gate")}
    assert widths == {"gate": 56, "gate.2": 24}


def test_layers_share_one_table_of_angles() -> None:
    assert len(lower(spec_of("llama")).ropes) == 1


def test_the_context_picks_longropes_factors() -> None:
    scaling = {
        "type": "longrope",
        "short_factor": [1.0] * 5,
        "long_factor": [4.0] * 5,
        "original_max_position_embeddings": 64,
    }
    spec = spec_of("llama", rope_scaling=scaling)
    assert lower(spec) == lower(spec, context=256)
    assert lower(spec, context=64).ropes[0].inv_freq[0] == 4 * lower(spec).ropes[0].inv_freq[0]


def test_multipliers_become_scales() -> None:
    program = lower(spec_of("granite"))
    scales = {op.kind: op.attrs["scale"] for op in program.ops if op.kind in ("embed", "add")}
    assert scales == {"embed": 2.0, "add": 0.5}
    assert program.ops[-1].attrs["scale"] == 0.25


def test_gpt_oss_passes_its_clamp_and_its_sinks() -> None:
    program = lower(spec_of("gpt_oss"))
    experts = next(op for op in program.ops if op.kind == "experts")
    assert {name: experts.attrs[name] for name in ("activation", "alpha", "limit")} == {
        "activation": "clamped_silu",
        "alpha": 1.702,
        "limit": 7.0,
    }
    assert next(op.weights for op in program.ops if op.kind == "attention") == ("layers.0.attn.sinks",)


def test_moe_layers_are_where_the_spec_has_them() -> None:
    spec = spec_of("qwen3_moe")
    assert spec.moe_layers == (0, 2)
    assert isinstance(spec.layers[0].ffn, Moe)
