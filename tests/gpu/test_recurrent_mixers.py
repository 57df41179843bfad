"""Triton's recurrences: interpreted they give what the native operations give, and they compile for every target."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from engine.device.triton_compile import compile_triton
from engine.program.device.triton_launch import FUNCTIONS, TYPES, launch_signature

TARGETS = (80, 86, 89, 90, 120)
CASES = {
    "conv", "conv of two", "long conv", "delta rule", "ragged delta rule", "delta rule a channel", "linear attention",
    "entries", "entries that overlap", "heads", "channels",
}  # fmt: skip
# Both compute in binary32; sums have another order, and exp and softplus are the chip's. Measured: up to 1.1e-6 of the
# largest value, interpreted.
TOLERANCE = 4e-6


def test_outputs_and_states_are_near_the_native_operations() -> None:
    """Several sequences in a step, whole and resumed, with states that are saved on the way."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.gpu.recurrent_mixers"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
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
    name, parameters, constants = KERNELS[kind]
    types = {parameter: TYPES[parameter] for parameter in parameters}
    compiled = compile_triton(FUNCTIONS[name], types, constants, target)
    assert compiled.name == name
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.shared <= 48 << 10  # more would have to be asked for
    assert len(launch_signature(name, types).parameters) == len(parameters) + 2
