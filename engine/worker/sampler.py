"""One token from one row of logits. A request's tokens depend on its own logits, parameters and seed alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import FreetokenError
from engine.worker.constraint import Constraint
from engine.worker.protocol import Sampling, TokenLogprob
from engine.worker.thought import Thought

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity
_BLOCK = 512
_SORTABLE = 4096
_COLDEST = 1e-30  # the least temperature that does not vanish in f32


@dataclass(frozen=True)
class Choice:
    """The chosen token, and its log probability if one was asked for."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """Chooses the tokens of one request, one after the other."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int], constraints: Sequence[Constraint] = ()) -> None:
        self._sampling = sampling
        self._constraints = constraints
        self._thought = None if sampling.thought is None else Thought(sampling.thought)
        self._penalises = (
            sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        )
        self._seen = np.unique(np.fromiter(prompt, np.int64)) if self._penalises else np.empty(0, np.int64)
        self._generated: Counter[int] = Counter()
        self._count = 0

    @property
    def ready(self) -> bool:
        """Whether `choose` need not wait until a grammar has been read."""
        return all(constraint.ready for constraint in self._constraints)

    def check(self) -> None:
        """Raise UsageError or UnsupportedError about a grammar that cannot be followed."""
        for constraint in self._constraints:
            constraint.check()

    def close(self) -> None:
        """Forget the grammars. Nothing can be chosen any more."""
        for constraint in self._constraints:
            constraint.close()

    def choose(self, logits: Floats) -> Choice:
        """The next token for `logits` [vocab]. Raises when they are not numbers; this request is then lost."""
        if not np.isfinite(logits.max()):  # max passes NaN on
            raise FreetokenError(
                "The model's output for this request is not a number.",
                "Run `freetoken verify` on the model; if it is sound, this is a bug worth reporting.",
            )
        token = None if self._thought is None else self._thought.forced
        if token is None:
            token = self._pick(logits)
        self._count += 1
        if self._thought is not None:
            self._thought.take(token)
        for constraint in self._constraints:
            constraint.take(token)
        if self._penalises:
            self._remember(token)
        if self._sampling.logprobs < 0:
            return Choice(token)
        return Choice(token, _logprobs(logits, token, self._sampling.logprobs))

    def _pick(self, logits: Floats) -> int:
        """The model's own choice, among the tokens that may come."""
        allowed = logits if self._thought is None else self._thought.restrict(logits)
        for constraint in self._constraints:
            allowed = constraint.restrict(allowed)
        adjusted = self._adjust(allowed)
        if self._constraints and not np.isfinite(adjusted.max()):
            raise FreetokenError("No token of this model fits the grammar of the answer.", "Simplify its schema.")
        return int(adjusted.argmax()) if self._sampling.temperature == 0 else self._draw(adjusted)

    def _remember(self, token: int) -> None:
        self._generated[token] += 1
        place = int(np.searchsorted(self._seen, token))
        if place == len(self._seen) or self._seen[place] != token:
            self._seen = np.insert(self._seen, place, token)

    def _adjust(self, logits: Floats) -> Floats:
        """Bias, then the repetition penalty (prompt and answer), then OpenAI's two (answer only)."""
        sampling = self._sampling
        if not self._penalises and not sampling.logit_bias:
            return logits
        adjusted = logits.copy()
        for token, amount in sampling.logit_bias.items():
            adjusted[token] += np.float32(amount)
        if sampling.repetition_penalty != 1.0:
            values = adjusted[self._seen]
            penalty = np.float32(sampling.repetition_penalty)
            adjusted[self._seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._generated:
            ids = np.fromiter(self._generated.keys(), np.int64)
            counts = np.fromiter(self._generated.values(), np.float32)
            adjusted[ids] -= counts * np.float32(sampling.frequency_penalty) + np.float32(sampling.presence_penalty)
        return adjusted

    def _draw(self, logits: Floats) -> int:
        """Sample by inverting the cumulative distribution over what the filters left, in ascending token id."""
        sampling = self._sampling
        ids: Ids | None = None  # None: all tokens
        if 0 < sampling.top_k < len(logits):
            ids = _largest(logits, sampling.top_k)
            logits = logits[ids]
        # Dividing what is at most zero: a tiny temperature gives -inf and so weight 0, never an overflow to +inf.
        with np.errstate(over="ignore"):
            weights = np.exp((logits - logits.max()) / np.float32(max(sampling.temperature, _COLDEST)))
        if sampling.top_p < 1.0:
            kept = _nucleus(weights, sampling.top_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        if sampling.min_p > 0.0:
            kept = np.flatnonzero(weights >= np.float32(sampling.min_p) * weights.max())
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        # Each token has its own counter, so a request that is preempted and resumed goes on with the same numbers.
        key = np.array([sampling.seed % 2**64, sampling.choice], np.uint64)
        uniform = np.random.Generator(np.random.Philox(key=key, counter=self._count)).random()
        index = _invert(weights, uniform)
        return index if ids is None else int(ids[index])


def _invert(weights: Floats, uniform: float) -> int:
    """The index at which the running sum of `weights` passes `uniform` (0 to 1) times their sum."""
    whole = len(weights) // _BLOCK
    # Sums of blocks first: a running sum over a whole vocabulary takes twenty times as long.
    sums = weights[: whole * _BLOCK].reshape(whole, _BLOCK).sum(axis=1, dtype=np.float64)
    running = np.cumsum(np.append(sums, weights[whole * _BLOCK :].sum(dtype=np.float64)))
    goal = uniform * running[-1]
    block = int(np.searchsorted(running, goal, side="right"))
    before = running[block - 1] if block else 0.0
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    index = block * _BLOCK + int(np.searchsorted(inside, goal - before, side="right"))
    if index < len(weights) and weights[index] > 0:
        return index
    return int(np.flatnonzero(weights)[-1])  # rounding in the last places of a sum


def _largest(values: Floats, count: int) -> Ids:
    """Ids of the `count` largest values, ascending; among equal values the lower ids."""
    place = len(values) - count
    return _from_threshold(values, np.partition(values, place)[place], count)


def _from_threshold(values: Floats, threshold: np.float32, count: int) -> Ids:
    """As `_largest`, when the smallest of them is known to be `threshold`."""
    above = np.flatnonzero(values > threshold)
    ties = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """Ids, ascending, of the fewest most likely tokens whose share of `weights` reaches `top_p`; never none."""
    wanted = top_p * float(weights.sum(dtype=np.float64))
    # Sorting a whole vocabulary takes long, so first narrow down where in the order the end must lie: `count` tokens
    # of `mass` are in, the end is among `rest`.
    count, mass, rest = 0, 0.0, weights
    while len(rest) > _SORTABLE:
        upper = rest[rest > rest.mean()]
        if not 0 < len(upper) < len(rest):
            break  # all equal, or so nearly that the mean rounds to one of them
        upper_mass = float(upper.sum(dtype=np.float64))
        if mass + upper_mass >= wanted:
            rest = upper
        else:
            count, mass, rest = count + len(upper), mass + upper_mass, rest[rest <= rest.mean()]
    order = np.sort(rest)[::-1]
    reached = mass + np.cumsum(order, dtype=np.float64)
    last = min(int(np.searchsorted(reached, wanted, side="left")), len(order) - 1)
    return _from_threshold(weights, order[last], count + last + 1)


def _logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log probabilities of `token` and of the `top` most likely tokens, most likely first."""
    peak = logits.max()
    norm = float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    best: tuple[tuple[int, float], ...] = ()
    if top:
        ids = _largest(logits, min(top, len(logits)))
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        best = tuple((int(index), _finite(float(logits[index]) - norm)) for index in ids)
    return TokenLogprob(_finite(float(logits[token]) - norm), best)


def _finite(value: float) -> float:
    return max(value, LOWEST_LOGPROB)
