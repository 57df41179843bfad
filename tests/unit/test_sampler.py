"""The sampler against plain definitions of each filter, written with sorted lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import FreetokenError
from engine.worker.protocol import Sampling
from engine.worker.sampler import LOWEST_LOGPROB, Sampler, _invert, _nucleus

VOCAB = 50


def row(seed: int, vocab: int = VOCAB, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def draw(logits: np.ndarray, count: int, sampling: Sampling) -> list[int]:
    """`count` tokens, each the first of a request with a seed of its own."""
    return [Sampler(replace(sampling, seed=seed), ()).choose(logits).token for seed in range(count)]


def shares(logits: np.ndarray, sampling: Sampling) -> dict[int, float]:
    """The distribution after temperature, top-k, top-p and min-p, by the book."""
    scaled = [float(value) / sampling.temperature for value in logits]
    top = max(scaled)
    weights = sorted(((math.exp(v - top), -token) for token, v in enumerate(scaled)), reverse=True)
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    total, reached, kept = sum(w for w, _ in weights), 0.0, []
    for weight, token in weights:
        kept.append((weight, token))
        reached += weight
        if reached >= sampling.top_p * total:
            break
    kept = [(weight, token) for weight, token in kept if weight >= sampling.min_p * kept[0][0]]
    total = sum(weight for weight, _ in kept)
    return {-token: weight / total for weight, token in kept}


def assert_follows(tokens: Sequence[int], wanted: dict[int, float]) -> None:
    """A chi-square test; with fixed seeds it gives the same verdict on every run."""
    counts = Counter(tokens)
    assert counts.keys() <= wanted.keys()
    expected = {token: share * len(tokens) for token, share in wanted.items()}
    statistic = sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items())
    freedom = max(1, len(wanted) - 1)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=3.0),
        Sampling(top_k=7),
        Sampling(top_p=0.6),
        Sampling(min_p=0.2),
        Sampling(temperature=1.5, top_k=20, top_p=0.8, min_p=0.05),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling: Sampling) -> None:
    logits = row(1, vocab=30)
    assert_follows(draw(logits, 3000, sampling), shares(logits, sampling))


def test_the_check_of_distributions_can_fail() -> None:
    logits = row(1, vocab=30)
    with pytest.raises(AssertionError):
        assert_follows(draw(logits, 3000, Sampling()), shares(logits, Sampling(temperature=1.3)))


@given(st.integers(0, 1000), st.integers(0, VOCAB + 5), st.floats(0, 1), st.floats(0, 1), st.floats(0.05, 5))
def test_only_tokens_that_the_filters_leave_are_drawn(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    logits = row(seed)
    token = Sampler(sampling, ()).choose(logits).token
    # A token exactly on a threshold may fall on either side of it by rounding.
    loose = replace(sampling, top_p=min(1.0, top_p + 1e-6), min_p=max(0.0, min_p - 1e-6))
    assert token in shares(logits, loose)


def test_nucleus_of_a_flat_distribution_over_a_large_vocabulary() -> None:
    tokens = draw(np.zeros(5000, np.float32), 200, Sampling(top_p=0.5))
    assert max(tokens) < 2500
    assert len(set(tokens)) > 150


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 200), st.sampled_from([0.01, 1.0, 4.0]), st.floats(0, 1))
def test_nucleus_of_a_vocabulary_too_large_to_sort(seed: int, spread: float, top_p: float) -> None:
    weights = np.exp(row(seed, 20_000, spread)).round(seed % 4 + 1)  # rounding makes ties
    kept = _nucleus(weights, top_p)
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    assert kept.tolist() == sorted(order[: len(kept)])
    total = weights.sum(dtype=np.float64)
    mass = weights[order].astype(np.float64).cumsum()
    assert mass[len(kept) - 1] >= top_p * total * (1 - 1e-9) or len(kept) == len(weights)
    assert len(kept) == 1 or mass[len(kept) - 2] < top_p * total * (1 + 1e-9)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=2000).filter(any), st.floats(0, 1, exclude_max=True))
def test_inversion_finds_the_place_in_the_running_sum(weights: list[float], uniform: float) -> None:
    array = np.array(weights, np.float32)
    index = _invert(array, uniform)
    running = array.astype(np.float64).cumsum()
    assert array[index] > 0
    slack = 1e-9 * running[-1]
    assert (running[index - 1] if index else 0.0) <= uniform * running[-1] + slack
    assert running[index] >= uniform * running[-1] - slack


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[30, 7, 40]] = 1
    assert Sampler(Sampling(temperature=0), ()).choose(logits).token == 7
    assert Sampler(Sampling(top_k=1), ()).choose(logits).token == 7


def test_a_tiny_temperature_is_greedy_and_does_not_overflow() -> None:
    logits = row(3) * 1000
    assert draw(logits, 5, Sampling(temperature=1e-30)) == [int(logits.argmax())] * 5


def test_a_request_repeats_with_its_seed_and_choice_alone() -> None:
    rows = [row(seed) for seed in range(20)]

    def run(sampling: Sampling) -> list[int]:
        sampler = Sampler(sampling, (1, 2))
        return [sampler.choose(logits).token for logits in rows]

    base = run(Sampling(seed=-5))
    assert run(Sampling(seed=-5)) == base
    assert run(Sampling(seed=-5, choice=1)) != base
    assert run(Sampling(seed=-4)) != base
    assert run(Sampling(seed=2**64 - 5)) == base


def test_every_token_of_a_request_is_drawn_anew() -> None:
    sampler = Sampler(Sampling(seed=1), ())
    flat = np.zeros(10, np.float32)
    assert_follows([sampler.choose(flat).token for _ in range(2000)], dict.fromkeys(range(10), 0.1))


def test_penalties_by_their_formulas() -> None:
    logits = np.array([2.0, -1.0, 1.9, 0.0], np.float32)
    greedy = Sampling(temperature=0)
    # Repetition divides what is positive and multiplies what is negative, prompt included.
    assert Sampler(replace(greedy, repetition_penalty=1.1), (0, 1)).choose(logits).token == 2
    # Frequency and presence know the answer only.
    assert Sampler(replace(greedy, presence_penalty=2.0), (0, 1)).choose(logits).token == 0
    sampler = Sampler(replace(greedy, frequency_penalty=0.06), ())
    assert [sampler.choose(logits).token for _ in range(5)] == [0, 0, 2, 0, 2]
    sampler = Sampler(replace(greedy, presence_penalty=0.2), ())
    assert [sampler.choose(logits).token for _ in range(4)] == [0, 2, 0, 0]
    assert Sampler(replace(greedy, logit_bias={3: 2.5}), ()).choose(logits).token == 3


def test_the_logits_that_come_in_are_left_alone() -> None:
    logits = row(4)
    before = logits.copy()
    sampling = Sampling(repetition_penalty=2, frequency_penalty=1, logit_bias={3: -100}, top_p=0.5, logprobs=3)
    sampler = Sampler(sampling, (1, 2))
    for _ in range(3):
        sampler.choose(logits)
    assert (logits == before).all()


def test_logprobs_are_of_the_model_not_of_the_filters() -> None:
    logits = row(5)
    sampling = Sampling(temperature=0, logit_bias={9: 100}, logprobs=4)
    choice = Sampler(sampling, ()).choose(logits)
    norm = math.log(sum(math.exp(float(value)) for value in logits))
    assert choice.token == 9
    assert choice.logprob is not None
    assert choice.logprob.logprob == pytest.approx(float(logits[9]) - norm, abs=1e-6)
    best = sorted(range(VOCAB), key=lambda token: -logits[token])[:4]
    assert [token for token, _ in choice.logprob.top] == best
    assert Sampler(replace(sampling, logprobs=0), ()).choose(logits).logprob == replace(choice.logprob, top=())
    assert Sampler(replace(sampling, logprobs=-1), ()).choose(logits).logprob is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_an_error(bad: float) -> None:
    logits = row(6)
    logits[3] = bad
    for sampling in (Sampling(temperature=0), Sampling()):
        with pytest.raises(FreetokenError, match="not a number"):
            Sampler(sampling, ()).choose(logits)


def test_minus_infinity_is_a_token_that_never_comes() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[4] = 0
    assert draw(logits, 20, Sampling(top_p=0.9, repetition_penalty=1.5)) == [4] * 20
    choice = Sampler(Sampling(logprobs=2), ()).choose(logits)
    assert choice.logprob is not None
    assert choice.logprob.top == ((4, 0.0), (0, LOWEST_LOGPROB))
    with pytest.raises(FreetokenError):
        Sampler(Sampling(), ()).choose(np.full(VOCAB, -np.inf, np.float32))
