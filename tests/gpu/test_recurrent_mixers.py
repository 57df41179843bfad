"""Triton's recurrences: interpreted they give what the native operations give, and they compile for every target."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from tests.gpu.without_chip import TARGETS, TOLERANCE, check_compiled, interpreted

CASES = {
    "conv", "conv of two", "long conv", "delta rule", "ragged delta rule", "delta rule a channel", "linear attention",
    "entries", "entries that overlap", "heads", "channels",
}  # fmt: skip


def test_outputs_and_states_are_near_the_native_operations() -> None:
    """Several sequences in a step, whole and resumed, with states that are saved on the way."""
    found = interpreted("recurrent_mixers")
    assert found.keys() == CASES
    for outputs, states in found.values():
        assert 0 < outputs <= TOLERANCE, found
        assert states <= TOLERANCE, found


SEQUENCES = ("states", "starts", "slots", "fresh", "saves", "sequences")
KERNELS = {
    "prompts": (
        "convolve",
        ("x", "y", "weights", "bias", *SEQUENCES, "x_stride", "y_stride", "slot_values", "channels"),
        {"KERNEL": 4, "TILE": 16, "BLOCK": 128, "SILU": 1, "HAS_BIAS": 1},
    ),
    "single tokens": (
        "convolve",
        ("x", "y", "weights", "bias", *SEQUENCES, "x_stride", "y_stride", "slot_values", "channels"),
        {"KERNEL": 4, "TILE": 1, "BLOCK": 128, "SILU": 0, "HAS_BIAS": 0},
    ),
    "delta rule": (
        "delta_rule",
        (
            "q", "k", "v", "g", "b", "out", *SEQUENCES, "q_stride", "k_stride", "v_stride", "g_stride", "b_stride",
            "out_stride", "slot_values", "scale", "slope",
        ),
        {
            "HEADS": 32, "SHARED_BY": 2, "K_DIM": 128, "K_BLOCK": 128, "V_DIM": 128, "V_BLOCK": 32, "A_CHANNEL": 1,
            "CORRECTS": 1,
        },
    ),
    "linear attention": (
        "delta_rule",
        (
            "q", "k", "v", "g", "b", "out", *SEQUENCES, "q_stride", "k_stride", "v_stride", "g_stride", "b_stride",
            "out_stride", "slot_values", "scale", "slope",
        ),
        {
            "HEADS": 64, "SHARED_BY": 1, "K_DIM": 128, "K_BLOCK": 128, "V_DIM": 128, "V_BLOCK": 32, "A_CHANNEL": 0,
            "CORRECTS": 0,
        },
    ),
    "heads": (
        "state_space",
        (
            "x", "dt", "b", "c", "y", "a_log", "d", "dt_bias", *SEQUENCES, "x_stride", "dt_stride", "b_stride",
            "c_stride", "y_stride", "slot_values", "dt_min", "dt_max",
        ),
        {"HEAD_DIM": 64, "STATE_DIM": 128, "GROUP_ROWS": 512, "ROWS": 32, "COLUMNS": 128, "A_CHANNEL": 0},
    ),
    "channels": (
        "state_space",
        (
            "x", "dt", "b", "c", "y", "a_log", "d", "dt_bias", *SEQUENCES, "x_stride", "dt_stride", "b_stride",
            "c_stride", "y_stride", "slot_values", "dt_min", "dt_max",
        ),
        {"HEAD_DIM": 1, "STATE_DIM": 16, "GROUP_ROWS": 8192, "ROWS": 256, "COLUMNS": 16, "A_CHANNEL": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_compile_for_every_target_without_a_chip(kind: str, target: int) -> None:
    check_compiled(*KERNELS[kind], target)
