"""The choice of what attention looks at: against torch, in any batching, and where all or nothing is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import _native
from engine.base.errors import UnsupportedError
from engine.program.device.triton_mixers import refuse_what_has_no_kernels
from engine.program.native import NativeExecutor
from tests.unit.selection_rig import PAGE, Selection, run, tokens_of

LENGTH = 330  # tokens: two blocks of attention
SELECTIONS = {
    "latent": Selection(top_k=37),
    "latent over blocks of attention": Selection(top_k=270, index_heads=5, heads=40),
    "latent blocks": Selection(top_k=9, block=5, local=1),
    "heads choose blocks": Selection(
        top_k=4, weighted=False, block=32, local=1, index_heads=2, kv_heads=2, heads=6, v_dim=24
    ),
    "many blocks, no local ones": Selection(
        top_k=12, weighted=False, block=16, index_heads=1, kv_heads=1, heads=2, v_dim=8
    ),
    "one set for all kv heads": Selection(top_k=3, block=48, local=2, kv_heads=2, v_dim=16),
}
CHUNKS = [1, 30, 17, 64, 1, 1, 90, 33, 5, 60, *[4] * 7]


def chosen_of(executor: NativeExecutor) -> np.ndarray[Any, Any]:
    return executor._native.buffer("chosen").astype(np.int64)


@pytest.mark.parametrize("name", SELECTIONS)
def test_native_does_what_torch_does(name: str) -> None:
    selection, tokens = SELECTIONS[name], tokens_of(LENGTH)
    ours, theirs = run(selection.native(), tokens, [LENGTH]), run(selection.reference(), tokens, [LENGTH])
    assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_bits_do_not_depend_on_batches_threads_or_instructions(name: str, kv_dtype: str) -> None:
    selection, tokens = SELECTIONS[name], tokens_of(LENGTH)
    expected = run(selection.native(kv_dtype=kv_dtype), tokens, [LENGTH])
    runs: Sequence[tuple[dict[str, Any], list[int]]] = [
        ({"threads": 1}, CHUNKS),
        ({"threads": 2}, [LENGTH - 3, 1, 1, 1]),
        ({"page_tokens": 64}, [105, 225]),
        *(({"isa": isa}, CHUNKS) for isa in _native.isas()),
    ]
    for settings, steps in runs:
        found = run(selection.native(kv_dtype=kv_dtype, **settings), tokens, steps)
        assert found.tobytes() == expected.tobytes(), (settings, steps)


@pytest.mark.parametrize("name", SELECTIONS)
def test_where_everything_is_chosen_nothing_changes(name: str) -> None:
    selection, tokens = replace(SELECTIONS[name], top_k=LENGTH), tokens_of(LENGTH)
    whole = run(replace(selection, chosen=False).native(), tokens, [LENGTH])
    assert run(selection.native(), tokens, CHUNKS).tobytes() == whole.tobytes()
    assert run(SELECTIONS[name].native(), tokens, [LENGTH]).tobytes() != whole.tobytes(), "and a choice does"


@pytest.mark.parametrize("name", SELECTIONS)
def test_numbers_ascend_and_the_last_blocks_are_there(name: str) -> None:
    selection, executor = SELECTIONS[name], SELECTIONS[name].native()
    run(executor, tokens_of(LENGTH), [LENGTH])
    chosen = chosen_of(executor).reshape(LENGTH, selection.sets, selection.top_k)
    for token in (0, 1, 50, LENGTH - 1):
        blocks = token // selection.block + 1
        for numbers in chosen[token]:
            kept = numbers[numbers >= 0]
            assert len(kept) == min(blocks, selection.top_k)
            assert (numbers[len(kept) :] == -1).all()
            assert (np.diff(kept) > 0).all()
            assert kept[-1] < blocks
            assert set(range(max(0, blocks - selection.local), blocks)) <= set(kept.tolist())


def test_of_equal_scores_the_lower_number_is_chosen() -> None:
    selection = Selection(top_k=4)
    executor, tokens = selection.native(), np.full(LENGTH, 7, np.int32)
    run(executor, tokens, [LENGTH])
    assert (chosen_of(executor)[4:] == np.arange(4)).all(), "all keys are one"


@pytest.mark.parametrize("every", [4, 32])
def test_an_entry_is_seen_once_all_its_tokens_are_there(every: int) -> None:
    selection = Selection(top_k=9, index_dim=32, every=every)
    rng, outputs = np.random.default_rng(3), []
    executors = (selection.native(), selection.reference())
    pages = {page: rng.normal(size=executors[0].block_bytes["page"] // 4).astype(np.float32) for page in range(128)}
    for executor in executors:
        for page, values in pages.items():
            entries = values[: max(1, PAGE // every) * selection.index_dim]
            whole = np.zeros(executor.block_bytes["page"] // 4, np.float32)
            whole[: len(entries)] = entries
            executor.write_block("page", page, whole.view(np.uint8))
        outputs.append(run(executor, tokens_of(LENGTH), [LENGTH]))
    chosen = chosen_of(executors[0])
    assert (chosen[: every - 1] == -1).all()
    assert chosen[every - 1].tolist() == [0] + [-1] * 8
    assert (chosen[-1] < LENGTH // every).all()
    assert len(set(chosen[-1].tolist())) == 9
    np.testing.assert_allclose(outputs[0][9 * every :], outputs[1][9 * every :], rtol=1e-4, atol=1e-5)


def test_a_tail_is_what_belongs_to_no_entry_yet() -> None:
    selection, pages = Selection(top_k=3, index_dim=32, every=4, tail=True), np.random.default_rng(3)
    entries = pages.normal(size=(128, PAGE // selection.every * selection.index_dim)).astype(np.float32)
    outputs = []
    runs = ((selection.native(), [LENGTH]), (selection.native(), CHUNKS), (selection.reference(), [LENGTH]))
    for executor, steps in runs:
        for page, values in enumerate(entries):
            whole = np.zeros(executor.block_bytes["page"] // 4, np.float32)
            whole[: len(values)] = values
            executor.write_block("page", page, whole.view(np.uint8))
        outputs.append(run(executor, tokens_of(LENGTH), steps))
    chosen = chosen_of(runs[0][0])
    assert chosen[:5].tolist() == [[0, -1, -1, -1]] * 4 + [[0, 1, -1, -1]]
    assert (chosen[15::4, 3] == -1).all(), "every token is of an entry that is there"
    assert (chosen[16::4, 3] == np.arange(4, LENGTH // 4 + 1)[: len(chosen[16::4])]).all()
    assert outputs[0].tobytes() == outputs[1].tobytes()
    np.testing.assert_allclose(outputs[0], outputs[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 8, "v_dim": 24}, "multiple of 16"),
        ({"local": 5, "top_k": 4}, "more than it may"),
        ({"tail": True}, "tail of single tokens"),
        ({"weighted": False, "kv_heads": 2, "v_dim": 16, "block": 16}, "no whole kv heads"),
        ({"every": 3}, "cannot hold an entry every 3"),
    ],
)
def test_what_cannot_be_chosen_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        replace(Selection(top_k=37), **changes).native()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_heads": 129}, r"choose.*129 heads, and a GPU takes 128.*--device cpu"),
        ({"block": 272, "local": 1}, r"choose.*blocks of 272 entries, and a GPU takes 256.*--device cpu"),
    ],
)
def test_a_gpu_refuses_indexers_that_are_too_large_for_its_kernels(changes: dict[str, Any], message: str) -> None:
    refuse_what_has_no_kernels(Selection(top_k=37).program())
    with pytest.raises(UnsupportedError, match=message):
        refuse_what_has_no_kernels(replace(Selection(top_k=37), **changes).program())
