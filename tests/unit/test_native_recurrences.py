"""The native recurrences against numpy, and the same bits for any instruction set, threads, chunks and neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import _native
from engine.base.errors import UnsupportedError
from engine.program.executor import Floats
from engine.program.native import NativeExecutor
from tests.same_bits import assert_same_bits
from tests.unit.recurrence_rig import VOCAB, Case, Rig, Run, advance, conv, delta_rule, ssm, tokens_of, vector

LENGTH = 50


def delta(heads: int, key_heads: int, k_dim: int, v_dim: int, channelwise: bool) -> Case:
    keys, decays = key_heads * k_dim, heads * k_dim if channelwise else heads
    reads = ((keys, 1.0), (keys, 0.2), (heads * v_dim, 1.0), (decays, 0.3), (heads, 1.0))
    attrs = {"heads": heads, "key_heads": key_heads, "k_dim": k_dim, "v_dim": v_dim, "scale": 0.25}
    return Case("delta_rule", reads, heads * v_dim, delta_rule, attrs, state=heads * k_dim * v_dim)


def linear(heads: int, k_dim: int, v_dim: int) -> Case:
    reads = ((heads * k_dim, 1.0), (heads * k_dim, 0.2), (heads * v_dim, 1.0))
    attrs = {"heads": heads, "key_heads": heads, "k_dim": k_dim, "v_dim": v_dim, "scale": 0.25, "slope": 0.7}
    return Case("delta_rule", reads, heads * v_dim, delta_rule, attrs, state=heads * k_dim * v_dim)


def state_space(heads: int, head_dim: int, groups: int, n: int, by_channel: bool, low: float, high: float) -> Case:
    width = heads * head_dim
    reads = ((width, 1.0), (heads, 1.0), (groups * n, 1.0), (groups * n, 1.0))
    attrs = {"heads": heads, "head_dim": head_dim, "groups": groups, "state_dim": n, "dt_min": low, "dt_max": high}
    weights = (vector(heads * n if by_channel else heads), vector(heads, 1.0), vector(heads))
    return Case("ssm", reads, width, ssm, attrs, weights, width * n)


def convolution(channels: int, kernel: int, activation: str, bias: bool, in_place: bool) -> Case:
    attrs = {"channels": channels, "kernel": kernel, "activation": activation}
    weights = (vector(channels * kernel), vector(channels) if bias else None)
    return Case("conv", ((channels, 1.0),), channels, conv, attrs, weights, channels * (kernel - 1), in_place)


CASES = {
    "a decay a head": delta(4, 4, 16, 32, False),
    "shared key heads": delta(6, 2, 16, 20, False),
    "a decay a key channel": delta(4, 2, 20, 150, True),
    "one head": delta(1, 1, 64, 64, True),
    "linear attention": linear(5, 20, 150),
    "mamba 2": state_space(6, 10, 2, 32, False, 0.0, 0.0),
    "mamba 2 with clamped steps": state_space(8, 5, 1, 20, False, 0.4, 0.9),
    "mamba 1": state_space(70, 1, 1, 16, True, 0.0, 0.0),
    "mamba 1 of odd states": state_space(40, 1, 1, 7, True, 0.0, 1.2),
    "convolution": convolution(200, 4, "silu", True, False),
    "short convolution in place": convolution(77, 3, "none", False, True),
}


@pytest.fixture(params=CASES)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(CASES[request.param])


def whole(rig: Rig, count: int = LENGTH, **settings: Any) -> Floats:
    run = Run(tokens_of(count), 0)
    advance(rig.executor(**settings), [(run, count)])
    return run.output


def test_outputs_are_those_of_the_recurrence_in_numpy(rig: Rig) -> None:
    exact = rig.model(tokens_of(LENGTH))
    assert np.abs(whole(rig) - exact).max() <= 2e-5 * np.abs(exact).max()


NOTICED = {
    "a decay a head": {"scale": 0.26},
    "shared key heads": {"key_heads": 1},
    "mamba 2": {"groups": 1},
    "mamba 2 with clamped steps": {"dt_max": 1.0},
    "mamba 1 of odd states": {"dt_min": 0.1},
    "convolution": {"activation": "none"},
}


@pytest.mark.parametrize("name", NOTICED)
def test_another_attribute_gives_another_output(name: str) -> None:
    rig = Rig(CASES[name])
    ours = whole(rig)
    rig.case = replace(rig.case, attrs={**rig.case.attrs, **NOTICED[name]})
    exact = rig.model(tokens_of(LENGTH))
    assert np.abs(ours - exact).max() > 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("threads", [1, 2])
def test_instruction_sets_and_threads_give_the_same_bits(rig: Rig, isa: str, threads: int) -> None:
    assert_same_bits(whole(rig, isa=isa, threads=threads), whole(rig, isa="scalar", threads=1))


@pytest.mark.parametrize("chunks", [[1], [7], [1, 20, 2]])
def test_chunks_do_not_change_a_bit(rig: Rig, chunks: list[int]) -> None:
    executor, run = rig.executor(threads=2), Run(tokens_of(LENGTH), 2)
    turn = 0
    while run.done < LENGTH:
        advance(executor, [(run, min(chunks[turn % len(chunks)], LENGTH - run.done))])
        turn += 1
    assert_same_bits(run.output, whole(rig))


def test_sequences_at_different_positions_run_side_by_side(rig: Rig) -> None:
    executor = rig.executor(threads=2)
    runs = [Run(tokens_of(LENGTH, seed), slot) for seed, slot in ((1, 3), (2, 0), (3, 2))]
    advance(executor, [(runs[1], 9)])
    advance(executor, [(runs[0], 4), (runs[1], 1)])
    advance(executor, [(runs[2], 30), (runs[0], 1), (runs[1], 25)])
    advance(executor, [(run, LENGTH - run.done) for run in runs])
    for run in runs:
        alone = Run(run.tokens, 1)
        advance(rig.executor(), [(alone, LENGTH)])
        assert_same_bits(run.output, alone.output)


def test_saved_states_are_gone_on_from_with_the_same_bits(rig: Rig) -> None:
    executor, cold = rig.executor(states=8, threads=2), whole(rig)
    first, other = Run(tokens_of(LENGTH), 5), Run(tokens_of(LENGTH, 2), 1)
    advance(executor, [(other, 10), (first, 5)])
    advance(executor, [(other, 6), (first, 40)], {3: 7, 6: 0, 6 + 20: 2, 6 + 39: 4})
    advance(executor, [(first, 5)])
    assert_same_bits(first.output, cold)
    for slot, done in ((0, 6), (2, 26), (4, 45)):
        resumed = Run(tokens_of(LENGTH), slot, done)
        advance(executor, [(resumed, LENGTH - done)])
        assert_same_bits(resumed.output, cold[done:])
    resumed = Run(other.tokens, 7, 14)
    advance(executor, [(resumed, 2)])
    assert_same_bits(resumed.output, other.output[14:16])
    executor.copy_block("state", 1, 3)
    copied = Run(other.tokens, 3, 16)
    advance(executor, [(other, 10), (copied, 10)])
    assert_same_bits(copied.output, other.output[16:26])


def test_a_state_makes_a_difference(rig: Rig) -> None:
    forgetful = Run(tokens_of(LENGTH), 0, 25)
    advance(rig.executor(), [(forgetful, 25)])
    assert np.abs(forgetful.output[0] - whole(rig)[25]).max() > 1e-3


def test_blocks_carry_states_to_another_executor(rig: Rig) -> None:
    ours, theirs = rig.executor(), rig.executor(isa="scalar", threads=1)
    run = Run(tokens_of(LENGTH), 1)
    advance(ours, [(run, 20)])
    theirs.write_block("state", 2, ours.read_block("state", 1))
    run.slot = 2
    advance(theirs, [(run, LENGTH - 20)])
    assert_same_bits(run.output, whole(rig))


def test_what_is_no_number_stays_with_its_sequence_and_behind_its_token(rig: Rig) -> None:
    clean, poison, at = whole(rig), VOCAB - 1, 30
    rig.table[poison] = np.nan
    spoiled = Run(np.where(np.arange(LENGTH) == at, poison, tokens_of(LENGTH) % poison).astype(np.int32), 1)
    other = Run(tokens_of(LENGTH, 2) % poison, 0)
    executor = rig.executor(threads=2)
    advance(executor, [(spoiled, LENGTH), (other, LENGTH)])
    assert np.isnan(spoiled.output[at]).all()
    assert np.isfinite(spoiled.output[:at]).all()
    assert np.isfinite(other.output).all()
    alone = Run(other.tokens, 0)
    advance(rig.executor(), [(alone, LENGTH)])
    assert_same_bits(other.output, alone.output)
    fresh = Run(other.tokens, 1)  # in the slot that was spoiled
    advance(executor, [(fresh, LENGTH)])
    assert_same_bits(fresh.output, alone.output)
    assert np.isfinite(clean).all()


def changed(case: Case, **changes: Any) -> Case:
    return replace(case, **changes)


DELTA, SPACE, CONV = CASES["shared key heads"], CASES["mamba 2"], CASES["convolution"]
REFUSED = {
    "state of another size": (changed(DELTA, state=DELTA.state + 1), "values instead of"),
    "key heads that do not divide": (changed(DELTA, attrs={**DELTA.attrs, "key_heads": 4}), "do not divide"),
    "decays of another width": (changed(DELTA, reads=(*DELTA.reads[:3], (7, 1.0), DELTA.reads[4])), "columns"),
    "keys too wide": (delta(1, 1, 1025, 16, False), "1024 key channels"),
    "groups that do not divide": (changed(SPACE, attrs={**SPACE.attrs, "groups": 4}), "do not divide"),
    "rates of another length": (changed(SPACE, weights=(vector(5), *SPACE.weights[1:])), "a_log"),
    "rates a value in wide heads": (state_space(6, 10, 2, 32, True, 0.0, 0.0), "a head is one channel"),
    "a kernel of one": (convolution(20, 1, "none", False, False), "kernel"),
    "an unknown activation": (changed(CONV, attrs={**CONV.attrs, "activation": "tanh"}), "tanh"),
    "outputs over inputs": (changed(delta(4, 4, 16, 16, False), in_place=True), "lies there too"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        Rig(case).executor()


def test_two_operations_with_one_state_are_refused(rig: Rig) -> None:
    program = rig.program()
    embed, op, select = program.ops
    doubled = replace(program, ops=(embed, op, op, select))
    with pytest.raises(UnsupportedError, match="that of another operation"):
        NativeExecutor(doubled, rig.tensors(), ())
