"""One token from one row of logits. A request's tokens depend on its own logits, parameters and seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import FreetokenError
from engine.worker.protocol import Sampling, TokenLogprob

Floats = NDArray[np.float32]

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity
_HEAD = 1024  # most likely tokens that top-p looks at before it sorts the whole vocabulary


@dataclass(frozen=True)
class Choice:
    """The chosen token, and its log probability if one was asked for."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """Chooses the tokens of one request, one after the other."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int]) -> None:
        self._sampling = sampling
        self._penalises = (
            sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        )
        self._prompt = frozenset(prompt) if self._penalises else frozenset()
        self._generated: Counter[int] = Counter()
        self._count = 0

    def choose(self, logits: Floats) -> Choice:
        """The next token for `logits` [vocab]. Raises when they are not numbers; this request is then lost."""
        if not np.isfinite(logits.max()):  # max passes NaN on
            raise FreetokenError(
                "The model's output for this request is not a number.",
                "Run `freetoken verify` on the model; if it is sound, this is a bug worth reporting.",
            )
        adjusted = self._adjust(logits)
        token = int(adjusted.argmax()) if self._sampling.temperature == 0 else self._draw(adjusted)
        self._count += 1
        if self._penalises:
            self._generated[token] += 1
        if self._sampling.logprobs < 0:
            return Choice(token)
        return Choice(token, _logprobs(logits, token, self._sampling.logprobs))

    def _adjust(self, logits: Floats) -> Floats:
        """Bias, then the repetition penalty (prompt and answer), then OpenAI's two (answer only)."""
        sampling = self._sampling
        if not self._penalises and not sampling.logit_bias:
            return logits
        adjusted = logits.copy()
        for token, amount in sampling.logit_bias.items():
            adjusted[token] += np.float32(amount)
        if sampling.repetition_penalty != 1.0:
            seen = np.fromiter(self._prompt | self._generated.keys(), np.int64)
            values = adjusted[seen]
            penalty = np.float32(sampling.repetition_penalty)
            adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._generated:
            ids = np.fromiter(self._generated.keys(), np.int64)
            counts = np.fromiter(self._generated.values(), np.float32)
            adjusted[ids] -= counts * np.float32(sampling.frequency_penalty) + np.float32(sampling.presence_penalty)
        return adjusted

    def _draw(self, logits: Floats) -> int:
        """Sample by inverting the cumulative distribution over what the filters left, in ascending token id."""
        sampling = self._sampling
        # Subtracting first keeps tiny temperatures from overflowing.
        scaled = (logits - logits.max()).astype(np.float64) / sampling.temperature
        ids: NDArray[np.int64] | None = None
        if 0 < sampling.top_k < len(scaled):
            ids = _most_likely(scaled, sampling.top_k)
            scaled = scaled[ids]
        weights = np.exp(scaled)
        if sampling.top_p < 1.0:
            kept = _nucleus(weights, sampling.top_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        if sampling.min_p > 0.0:
            kept = np.flatnonzero(weights >= sampling.min_p * weights.max())
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        cumulative = np.cumsum(weights)
        # Each token has its own counter, so a request that is preempted and resumed goes on with the same numbers.
        key = np.array([sampling.seed % 2**64, sampling.choice], np.uint64)
        uniform = np.random.Generator(np.random.Philox(key=key, counter=self._count)).random()
        index = min(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")), len(weights) - 1)
        return index if ids is None else int(ids[index])


def _most_likely(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest values, ascending; among equal values the lower ids."""
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    ties = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Ids, ascending, of the fewest most likely tokens whose share of `weights` reaches `top_p`; never none."""
    wanted = top_p * weights.sum()
    head = _most_likely(weights, min(_HEAD, len(weights)))
    if weights[head].sum() < wanted:
        head = np.arange(len(weights))
    order = head[np.argsort(-weights[head], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), wanted, side="left")) + 1
    return np.sort(order[:count])


def _logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log probabilities of `token` and of the `top` most likely tokens, most likely first."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best: tuple[tuple[int, float], ...] = ()
    if top:
        ids = _most_likely(values, min(top, len(values)))
        ids = ids[np.argsort(-values[ids], kind="stable")]
        best = tuple((int(index), _finite(values[index])) for index in ids)
    return TokenLogprob(_finite(values[token]), best)


def _finite(value: np.float64) -> float:
    return max(float(value), LOWEST_LOGPROB)
