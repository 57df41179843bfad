"""The Triton kernels: interpreted they give what the native operation gives, and they compile for every target."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from tests.gpu.without_chip import TARGETS, TOLERANCE, check_compiled, interpreted

CASES = {
    "latent", "a window", "pages of a window, an odd head", "chunks, a kv head a head",
    "softcap, many heads a kv head", "sinks, a ragged head", "all of them",
}  # fmt: skip


@pytest.mark.long
def test_each_kind_is_near_the_native_operation() -> None:
    found = interpreted("paged_attention")
    assert found.keys() == CASES
    assert all(0 < share <= TOLERANCE for share in found.values()), found


@pytest.mark.long
def test_steps_of_a_model_are_near_the_cpus_with_hits_fills_and_a_share_of_the_cpu() -> None:
    found = interpreted("paged_model")
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
    check_compiled(name, *KERNELS[name], target)
