"""Selections and entries by Triton: interpreted they give what the native operations give, and they compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from engine.base.errors import NoRoomError
from engine.device.sim import SimDriver
from engine.memory.blocks import ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.triton_launch import LoadedKernel
from engine.program.device.triton_mixers import TritonMixers
from tests.gpu.without_chip import TARGETS, TOLERANCE, check_compiled, interpreted
from tests.unit.selection_rig import Selection

MIB = 1 << 20
USUAL = (80, 120)  # the oldest and the newest; all take long
MOST_SHARED = 99 << 10  # that a block of a GPU of these targets may ask for


def check(*cases: str) -> None:
    found = interpreted("selections", *cases)
    assert found.keys() == set(cases)
    for wrong, share in found.values():
        assert wrong == 0, found
        assert 0 < share <= TOLERANCE, found


def test_choices_are_those_of_the_native_operation_and_attention_is_near_it() -> None:
    """Sequences shorter than a choice and longer, several in a step, equal scores, pages in any order."""
    check("a few tokens")


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [
        ("many positions of many heads", "blocks of latent positions", "blocks for heads"),
        ("chosen entries", "all entries", "entries of two pages", "a window alone"),
    ],
    ids=["positions", "entries"],
)
def test_all_shapes_are_near_the_native_operations(cases: Sequence[str]) -> None:
    check(*cases)


@pytest.mark.long
def test_models_are_near_the_cpus_in_a_prompt_and_in_graphs() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    models = ("glm_moe_dsa", "minimax_m3_vl", "deepseek_v4-odd")
    found = interpreted("sparse_models", *models)
    assert found.keys() == set(models)
    # What is rounded to 16 bits a block may round to the other side; measured 2e-5
    assert all(0 < share <= 1e-3 for share in found.values()), found


CACHE = ("cache", "pages", "first_pages", "positions", "live")
SCORES: Sequence[str] = (
    "queries", "weights", *CACHE, "longest", "words", "query_stride", "weight_stride", "page_values", "first",
)  # fmt: skip
ATTENDS: Sequence[str] = (
    "queries", *CACHE, "chosen", "part_sums", "part_weights", "query_stride", "chosen_stride", "page_values",
    "key_values", "value_base", "value_values", "scale", "softcap", "window", "chunk",
)  # fmt: skip
SEQUENCES = ("states", "starts", "slots", "fresh", "saves", "sequences")
KERNELS: Mapping[str, tuple[str, Sequence[str], Mapping[str, int]]] = {
    "an indexer of 64 heads": (
        "score_numbers",
        SCORES,
        {
            "HEADS": 64, "K_DIM": 128, "K_PLACE": 128, "EVERY": 1, "RUN": 1, "LOCAL": 0, "TOP_K": 2048, "WEIGHTED": 1,
            "SETS": 1, "ROWS": 1, "GROUP": 64, "NUMBERS": 64, "EACH": 1, "CHUNK": 64,
        },
    ),
    "an indexer of blocks": (
        "score_numbers",
        SCORES,
        {
            "HEADS": 4, "K_DIM": 128, "K_PLACE": 128, "EVERY": 1, "RUN": 128, "LOCAL": 1, "TOP_K": 16, "WEIGHTED": 0,
            "SETS": 4, "ROWS": 16, "GROUP": 16, "NUMBERS": 1, "EACH": 128, "CHUNK": 64,
        },
    ),
    "latent attention to a selection": (
        "attend_parts",
        ATTENDS,
        {
            "HEADS": 64, "KV_HEADS": 1, "K_DIM": 576, "K_PLACE": 576, "K_COLUMN": 1, "V_DIM": 512, "V_PADDED": 576,
            "V_BLOCK": 512, "EVERY": 1, "TOP_K": 2048, "SETS": 1, "RUN": 1, "FIRST_PART": 0, "PARTS": 8, "CAPPED": 0,
            "TILE": 32, "CHUNK": 64, "GROUP": 16,
        },
    ),
    "attention to chosen blocks": (
        "attend_parts",
        ATTENDS,
        {
            "HEADS": 16, "KV_HEADS": 4, "K_DIM": 128, "K_PLACE": 1, "K_COLUMN": 16, "V_DIM": 128, "V_PADDED": 128,
            "V_BLOCK": 128, "EVERY": 1, "TOP_K": 16, "SETS": 4, "RUN": 128, "FIRST_PART": 0, "PARTS": 8, "CAPPED": 0,
            "TILE": 32, "CHUNK": 64, "GROUP": 16,
        },
    ),
    "attention to chosen entries": (
        "attend_parts",
        ATTENDS,
        {
            "HEADS": 64, "KV_HEADS": 1, "K_DIM": 512, "K_PLACE": 512, "K_COLUMN": 1, "V_DIM": 512, "V_PADDED": 512,
            "V_BLOCK": 512, "EVERY": 4, "TOP_K": 512, "SETS": 1, "RUN": 1, "FIRST_PART": 8, "PARTS": 16, "CAPPED": 0,
            "TILE": 32, "CHUNK": 64, "GROUP": 16,
        },
    ),
    "entries": (
        "compress",
        (
            "kv", "gate", "entry", "bias", "positions", *SEQUENCES, "kv_stride", "gate_stride", "entry_stride",
            "slot_values", "dim",
        ),
        {"EVERY": 4, "OVERLAP": 1, "BLOCK": 128},
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", USUAL)
@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_compile_for_the_oldest_and_the_newest_target_without_a_chip(kind: str, target: int) -> None:
    check_compiled(*KERNELS[kind], target, MOST_SHARED)


@pytest.mark.long
@pytest.mark.parametrize("target", sorted({*TARGETS} - {*USUAL}))
@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_compile_for_the_other_targets(kind: str, target: int) -> None:
    check_compiled(*KERNELS[kind], target, MOST_SHARED)


def test_words_have_room_for_every_page_and_a_resize_that_fails_changes_nothing() -> None:
    selection, driver = Selection(top_k=37), SimDriver(memory=64 * MIB, granularity=4096)
    program, tokens = selection.program(), 32
    buffers = DeviceBuffers(driver, program, tokens, tokens)
    before = driver.memory()[1]
    mixers = TritonMixers(
        driver, program, {}, buffers, load=nothing_to_load, kv_dtype="f16", page_tokens=16, room=ContextRoom(2),
        max_tokens=tokens,
    )  # fmt: skip
    free = driver.memory()[1]
    pages = free // (mixers.block_bytes["page"] + 4 * 16 * tokens)
    with pytest.raises(NoRoomError):
        mixers.resize_context(ContextRoom(pages + 8))
    assert (mixers.room, driver.memory()[1]) == (ContextRoom(2), free)
    mixers.resize_context(ContextRoom(pages - 8))
    assert driver.memory()[1] < 16 * (mixers.block_bytes["page"] + 4 * 16 * tokens)
    mixers.resize_context(ContextRoom(2))
    assert driver.memory()[1] == free
    mixers.free()
    assert driver.memory()[1] == before


def nothing_to_load(name: str, types: Mapping[str, str], constants: Mapping[str, int]) -> LoadedKernel:
    raise AssertionError(f"{name} is launched")
