"""The comparisons' own arithmetic: who goes first, what is divided by what, and the distance of two distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bench.divergence import distance
from tests.bench.peers import Task, main, table, take_turns


def test_programs_take_turns_and_alternate_who_begins() -> None:
    order: list[str] = []
    rates = {"ours": iter([110.0, 130.0, 120.0]), "theirs": iter([100.0, 100.0, 100.0])}

    def run(program: str) -> float:
        order.append(program)
        return next(rates[program])

    def read() -> float:
        order.append("read")
        return 20.0

    task = Task("decode", 1.1, lambda: run("ours"), lambda: run("theirs"))
    (result,) = take_turns([task], 3, read)
    turns = ("ours", "theirs", "theirs", "ours", "ours", "theirs")
    assert order == [step for who in turns for step in ("read", who, "read")]
    assert result.ours == (120.0, 110.0, 130.0)
    assert result.ratio == pytest.approx(1.2)
    assert result.pairs == pytest.approx((1.1, 1.3))


def test_a_slow_spell_that_hits_one_program_shows_in_the_read_loops() -> None:
    reads = iter([10.0, 10.0, 20.0, 20.0])  # the machine was half as fast while ours ran
    task = Task("decode", 1.1, lambda: 60.0, lambda: 100.0)
    (result,) = take_turns([task], 1, lambda: next(reads))
    assert result.ratio == pytest.approx(0.6)
    assert result.ratio_per_read == pytest.approx(1.2)
    assert "missed" in table("q4_0", [result]), "the worse of both ratios counts"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--prompts", "", "'' is not a list of numbers of tokens, such as 128,512"),
        ("--prompts", "128,many", "'128,many' is not"),
        ("--prompts", "0", "'0' is not"),
        ("--codecs", "q4_0,q9", "'q4_0,q9' is not a list of codecs, which are bf16, "),
    ],
)
def test_a_list_that_is_none_is_a_mistake_in_the_command_line(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--llama-cpp", "nowhere", option, value])
    assert ended.value.code == 2
    assert f"error: argument {option}: {words}" in capsys.readouterr().err


def test_the_distance_is_the_divergence_that_torch_computes() -> None:
    random = np.random.default_rng(1)
    exact = random.normal(size=(300, 50)).astype(np.float32) * 3
    other = exact + random.normal(size=exact.shape).astype(np.float32) * 0.1
    expected = torch.nn.functional.kl_div(
        torch.log_softmax(torch.from_numpy(other).double(), -1),
        torch.log_softmax(torch.from_numpy(exact).double(), -1),
        reduction="batchmean",
        log_target=True,
    )
    found = distance(exact, other)
    assert found.divergence == pytest.approx(float(expected), rel=1e-9)
    assert found.same_choice == (exact.argmax(1) == other.argmax(1)).mean()
    assert found.divergence < found.largest


def test_a_constant_added_to_logits_changes_nothing() -> None:
    exact = np.random.default_rng(2).normal(size=(4, 10)).astype(np.float32)
    assert distance(exact, exact + np.float32(4)).divergence < 1e-12
    assert distance(exact, exact[::-1]).divergence > 0.1
