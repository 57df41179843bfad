"""Attention that reaches back only so far, over window pages: given-up pages, foreign masks, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.masking_utils import chunked_causal_mask_function, sliding_window_causal_mask_function

from engine import _native
from engine.base.errors import NoRoomError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.executor import Batch, Executor, Floats, Ints
from engine.program.ir import Op, Program, State
from engine.program.native import NativeExecutor
from engine.program.reference.executor import ReferenceExecutor
from tests.unit.native_model import DenseWeights, RandomModel, tokens_of
from tests.unit.numpy_program import NumpyProgram

LENGTH = 610  # tokens: three blocks of attention
PAGE = 16
REACHES: dict[str, dict[str, Any]] = {
    "window": {"window": 40, "reach": 40},
    "window of one": {"window": 1, "reach": 1},
    "window over blocks": {"window": 300, "reach": 300, "sinks": True},
    "chunk": {"chunk": 64, "reach": 64},
    "chunk within pages": {"chunk": 24, "reach": 24},
    "chunk over blocks": {"chunk": 272, "reach": 272, "softcap": 2.0},
    "window within chunks": {"window": 50, "chunk": 80, "reach": 50},
}


def oldest(op: Op, position: int) -> int:
    window, chunk = int(op.attrs["window"]), int(op.attrs["chunk"])
    return max(0, position - window + 1 if window else 0, position // chunk * chunk if chunk else 0)


def executor_of(model: RandomModel, program: Program, kind: str, room: ContextRoom) -> Executor:
    if kind == "reference":
        return ReferenceExecutor(program, DenseWeights(**model.values), room)
    kv_dtype = kind.removeprefix("native ")
    return NativeExecutor(program, model.dense, [], threads=2, kv_dtype=kv_dtype, room=room, max_tokens=LENGTH)


def model_of(**reaching: Any) -> tuple[RandomModel, Program]:
    """One layer that keeps everything and one that reaches back only so far."""
    model = RandomModel()
    model.attention()
    model.attention(**reaching)
    return model, model.program()


def run(executor: Executor, op: Op, tokens: Ints, steps: list[int], garbage: bool = False) -> Floats:
    """Logits of all tokens. Window pages are given up as soon as nothing sees them, and reused for later positions."""
    free = list(range(executor.room.windows))[::-1]
    table: list[int] = []
    logits, start = [], 0
    for count in steps:
        first = oldest(op, start) // PAGE
        for index, page in enumerate(table[:first]):
            if page >= 0:
                if garbage:
                    ruin(executor, "window", page)
                free.insert(0, page)
                table[index] = -1
        while len(table) * PAGE < start + count:
            table.append(free.pop())
        rows = np.arange(count, dtype=np.int32)
        pages = np.arange(-(-(start + count) // PAGE), dtype=np.int32)
        batch = Batch(
            tokens[start : start + count],
            rows + np.int32(start),
            np.array([0, count], np.int32),
            (pages,),
            rows,
            window_tables=(np.array(table, np.int32),),
        )
        logits.append(executor.step(batch))
        start += count
    return np.concatenate(logits)


def ruin(executor: Executor, kind: BlockKind, block: int) -> None:
    """Nothing but NaN, in binary16 as in binary32."""
    executor.write_block(kind, block, np.full(executor.block_bytes[kind], 0xFF, np.uint8))


def chunked(length: int) -> list[int]:
    steps = [1, 30, 17, 64, 1, 1, 90, 33, 5]
    while sum(steps) < length:
        steps.append(min(41, length - sum(steps)))
    return steps


@pytest.mark.parametrize("kind", ["reference", "native f32", "native f16"])
@pytest.mark.parametrize("name", REACHES)
def test_pages_behind_the_reach_are_never_looked_at(name: str, kind: str) -> None:
    model, program = model_of(**REACHES[name])
    op = [op for op in program.ops if op.kind == "attention"][1]
    tokens = tokens_of(LENGTH)
    whole = ContextRoom(-(-LENGTH // PAGE), -(-LENGTH // PAGE))
    kept = run(executor_of(model, program, kind, whole), op, tokens, [LENGTH])
    few = ContextRoom(whole.pages, (REACHES[name]["reach"] + 90) // PAGE + 2)
    given_up = run(executor_of(model, program, kind, few), op, tokens, chunked(LENGTH), garbage=True)
    assert np.isfinite(kept).all()
    if kind == "reference":
        np.testing.assert_allclose(given_up, kept, rtol=1e-4, atol=1e-5)
    else:
        assert given_up.tobytes() == kept.tobytes()


@pytest.mark.parametrize("kind", ["reference", "native f32"])
def test_a_page_that_is_seen_matters(kind: str) -> None:
    executor = executor_of(*model_of(window=40, reach=40), kind, ContextRoom(4, 4))
    pages = np.arange(4, dtype=np.int32)
    rows = np.arange(60, dtype=np.int32)
    sequence = np.array([0, 60], np.int32)
    executor.step(Batch(tokens_of(60), rows, sequence, (pages,), rows[:0], window_tables=(pages,)))
    next_one = Batch(
        tokens_of(1),
        np.array([60], np.int32),
        np.array([0, 1], np.int32),
        (pages,),
        np.array([0], np.int32),
        window_tables=(np.array([-1, 1, 2, 3], np.int32),),
    )
    before = executor.step(next_one)
    ruin(executor, "window", 0)
    assert executor.step(next_one).tobytes() == before.tobytes(), "position 20 lies behind a window of 40 at 60"
    ruin(executor, "window", 1)
    assert np.isnan(executor.step(next_one)).all()


@pytest.mark.parametrize("name", REACHES)
def test_windows_and_chunks_are_those_of_the_model(name: str) -> None:
    model, program = model_of(**REACHES[name])
    op = [op for op in program.ops if op.kind == "attention"][1]
    executor = executor_of(model, program, "native f32", ContextRoom(-(-LENGTH // PAGE), -(-LENGTH // PAGE)))
    exact = NumpyProgram(program, model.values, model.experts)
    tokens = tokens_of(LENGTH)
    truth = exact.run(tokens)
    assert np.abs(run(executor, op, tokens, [LENGTH]) - truth).max() <= 2e-5 * np.abs(truth).max()


@pytest.mark.parametrize(("window", "chunk"), [(7, 0), (64, 0), (0, 7), (0, 64), (0, 48)])
def test_what_a_token_sees_is_what_the_masks_of_transformers_say(window: int, chunk: int) -> None:
    length, heads, kv_heads, dim = 150, 4, 2, 16
    model = RandomModel()
    model.attention(heads, kv_heads, dim, window=window, chunk=chunk, reach=window or chunk)
    (op,) = (op for op in model.ops if op.kind == "attention")
    room = ContextRoom(0, -(-length // PAGE))
    executor = NativeExecutor(model.program(), model.dense, [], threads=1, kv_dtype="f32", room=room)
    run(executor, op, tokens_of(length), [length])
    q, k, v, ours = (torch.from_numpy(executor._native.buffer(f"{name}0")) for name in "qkvo")
    if window:
        sees = sliding_window_causal_mask_function(window)
    else:
        sees = chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.int64))
    place, zero = torch.arange(length), torch.tensor(0)
    mask = sees(zero, zero, place[:, None], place[None, :])
    q, k, v = (x.view(length, -1, dim).transpose(0, 1)[None].double() for x in (q, k, v))
    truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(
        ours.double(), truth[0].transpose(0, 1).reshape(length, heads * dim), rtol=1e-5, atol=1e-5
    )


def batch_of(count: int, start: int, **more: Any) -> Batch:
    rows = np.arange(count, dtype=np.int32)
    pages = np.arange(8, dtype=np.int32)
    given = {"window_tables": (pages,), **more}
    return Batch(tokens_of(count), rows + np.int32(start), np.array([0, count], np.int32), (pages,), rows[:0], **given)


def test_tables_that_do_not_fit_are_refused_by_name() -> None:
    executor = executor_of(*model_of(window=40, reach=40), "native f32", ContextRoom(8, 8))
    for tables, why in (
        ((), "0 tables of window pages for 1 sequences"),
        (([-1, -1, 2, 3],), "uses window page -1"),
        (([-1, 1],), "needs 4 window pages"),
        (([-1, 1, 8, 3],), "uses window page 8 of 8"),
    ):
        with pytest.raises(ValueError, match=why):
            executor.step(batch_of(4, 60, window_tables=tuple(np.array(table, np.int32) for table in tables)))
    executor.step(batch_of(4, 60, window_tables=(np.array([-1, 1, 2, 3], np.int32),)))
    chunks = executor_of(*model_of(chunk=48, reach=48), "native f32", ContextRoom(8, 8))
    chunks.step(batch_of(2, 48, window_tables=(np.array([-1, -1, -1, 3], np.int32),)))
    with pytest.raises(ValueError, match="uses window page -1"):
        chunks.step(batch_of(2, 47, window_tables=(np.array([-1, -1, -1, 3], np.int32),)))


def test_states_and_saves_that_do_not_fit_are_refused_by_name() -> None:
    model = RandomModel()
    model.attention()
    program = replace(model.program(), states=(State(5), State(33)))
    executor = NativeExecutor(program, model.dense, [], threads=1, room=ContextRoom(8, 0, 3))
    assert executor.block_bytes["state"] == 64 + 192

    def step(states: list[int], saves: list[list[int]]) -> None:
        pairs = np.array(saves, np.int32).reshape(-1, 2)
        executor.step(batch_of(4, 0, states=np.array(states, np.int32), saves=pairs))

    step([0], [[1, 1], [3, 2]])
    for states, saves, why in (
        ([], [], "0 states for 1 sequences"),
        ([3], [], "has state 3 of 3"),
        ([-1], [], "has state -1 of 3"),
        ([0], [[4, 1]], "after token 4 of 4"),
        ([0], [[-1, 1]], "after token -1"),
        ([0], [[2, 1], [1, 2]], "after token 1 behind one after token 2"),
        ([0], [[1, 3]], "to state 3 of 3"),
        ([0], [[1, 0]], "to state 0, which is in use"),
        ([0], [[1, 1], [2, 1]], "to state 1, which is in use"),
    ):
        with pytest.raises(ValueError, match=why):
            step(states, saves)
    two = Batch(
        tokens_of(2),
        np.zeros(2, np.int32),
        np.array([0, 1, 2], np.int32),
        (np.array([0], np.int32), np.array([1], np.int32)),
        np.zeros(0, np.int32),
        states=np.array([1, 1], np.int32),
    )
    with pytest.raises(ValueError, match="sequence 1 has the state of another, 1"):
        executor.step(two)


@pytest.mark.parametrize("kind", ["reference", "native f32"])
def test_blocks_are_copied_read_and_written_as_they_are(kind: str) -> None:
    executor = executor_of(*model_of(window=40, reach=40), kind, ContextRoom(6, 5, 4))
    assert executor.room == ContextRoom(6, 5, 0), "no operation has a state"
    random = np.random.default_rng(0)
    for number, (block, count) in enumerate((("page", 6), ("window", 5))):
        kind_of: BlockKind = "page" if block == "page" else "window"
        size = executor.block_bytes[kind_of]
        assert size > 0
        data = random.standard_normal(size // 4).astype(np.float32).view(np.uint8)
        executor.write_block(kind_of, number, data)
        executor.copy_block(kind_of, number, count - 1)
        assert executor.read_block(kind_of, count - 1).tobytes() == data.tobytes()
        for wrong in (-1, count):
            with pytest.raises(IndexError):
                executor.copy_block(kind_of, 0, wrong)
            with pytest.raises(IndexError):
                executor.read_block(kind_of, wrong)
            with pytest.raises(IndexError):
                executor.write_block(kind_of, wrong, data)
        with pytest.raises(ValueError, match="bytes"):
            executor.write_block(kind_of, 0, data[:-4])
        executor.resize_context(ContextRoom(3, 3))
        executor.resize_context(ContextRoom(6, 5))
        assert executor.read_block(kind_of, number).tobytes() == data.tobytes()
    with pytest.raises(IndexError):
        executor.copy_block("state", 0, 0)


def test_a_resize_that_finds_no_memory_changes_no_kind() -> None:
    executor = executor_of(*model_of(window=40, reach=40), "native f32", ContextRoom(6, 5))
    data = np.arange(executor.block_bytes["page"], dtype=np.uint8)
    executor.write_block("page", 5, data)
    with pytest.raises(NoRoomError, match=r"2 pages and 2000000000 window pages"):
        executor.resize_context(ContextRoom(2, 2_000_000_000))
    assert executor.room == ContextRoom(6, 5)
    assert executor.read_block("page", 5).tobytes() == data.tobytes()


@pytest.mark.parametrize("name", ["window over blocks", "chunk over blocks", "window within chunks"])
def test_bits_are_equal_for_all_instruction_sets_threads_and_chunks(name: str) -> None:
    model, program = model_of(**REACHES[name])
    op = [op for op in program.ops if op.kind == "attention"][1]
    room = ContextRoom(-(-LENGTH // PAGE), -(-LENGTH // PAGE))
    tokens = tokens_of(LENGTH)
    found = {
        run(
            NativeExecutor(program, model.dense, [], threads=threads, isa=isa, room=room, max_tokens=LENGTH),
            op,
            tokens,
            steps,
        ).tobytes()
        for isa in _native.isas()
        for threads, steps in ((1, [LENGTH]), (3, chunked(LENGTH)))
    }
    assert len(found) == 1
