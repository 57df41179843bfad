"""The Triton kernels: interpreted they give what the native operation gives, and they compile for every target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from engine.device.triton_compile import compile_triton
from engine.program.device.triton_launch import FUNCTIONS, TYPES, launch_signature

TARGETS = (80, 86, 89, 90, 120)
CASES = (
    "grouped", "one kv head a head", "many heads a kv head", "odd head", "ragged head", "latent", "window",
    "window pages", "chunks", "softcap", "sinks", "all of them",
)  # fmt: skip
# Both keep binary16 and compute in binary32; only the order of sums differs. Measured: up to 7e-7 of the largest value.
TOLERANCE = 4e-6


def interpreted(*cases: str, module: str = "tests.gpu.paged_attention") -> Mapping[str, float]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", module, *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_latent_attention_with_everything_is_near_the_native_operation() -> None:
    found = interpreted("latent", "all of them")
    assert found.keys() == {"latent", "all of them"}
    assert all(0 < share <= TOLERANCE for share in found.values()), found


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_each_kind_is_near_the_native_operation(case: str) -> None:
    assert 0 < interpreted(case)[case] <= TOLERANCE


@pytest.mark.long
def test_steps_of_a_model_are_near_the_cpus_with_hits_fills_and_a_share_of_the_cpu() -> None:
    found = interpreted(module="tests.gpu.paged_model")
    assert 0 < found["worst"] <= 1e-3  # what is rounded to 16 bits a block may round to the other side; measured 3e-5
    assert min(found["hits"], found["fills"], found["cpu_experts"]) > 0


PLACES = ("pages", "first_pages", "positions", "live")
KERNELS = {
    "append_rows": (
        ("rows", "cache", *PLACES, "row_stride", "page_values", "base", "head_values"),
        {"DIM": 128, "PADDED": 128, "BLOCK": 128, "PLACE": 1, "COLUMN": 16, "EVERY": 1},
    ),
    "attend_parts": (
        (
            "queries", "cache", *PLACES, "chosen", "part_sums", "part_weights", "query_stride", "chosen_stride",
            "page_values", "key_values", "value_base", "value_values", "scale", "softcap", "window", "chunk",
        ),
        {
            "HEADS": 8, "KV_HEADS": 4, "K_DIM": 128, "K_PLACE": 1, "K_COLUMN": 16, "V_DIM": 128,
            "V_PADDED": 128, "V_BLOCK": 128, "EVERY": 1, "TOP_K": 0, "SETS": 1, "RUN": 1, "FIRST_PART": 0, "PARTS": 8,
            "CAPPED": 0, "TILE": 32, "CHUNK": 64, "GROUP": 16,
        },
    ),
    "merge_parts": (
        ("part_sums", "part_weights", "sinks", "live", "out", "out_stride"),
        {"HEADS": 32, "V_DIM": 128, "V_BLOCK": 128, "PARTS": 8, "HAS_SINKS": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_every_target_without_a_chip(name: str, target: int) -> None:
    parameters, constants = KERNELS[name]
    types = {parameter: TYPES[parameter] for parameter in parameters}
    compiled = compile_triton(FUNCTIONS[name], types, constants, target)
    assert compiled.name == name
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.shared <= 48 << 10  # more would have to be asked for
    assert len(launch_signature(name, types).parameters) == len(parameters) + 2
