"""What the turns of all rounds say together: medians, and how far each is off what was fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from tests.bench.agents.fits import DecodeFit, PrefillFit
from tests.bench.agents.rounds import Cold, Turn
from tests.bench.agents.servers import OURS, THEIRS

SLOW = 120.0  # seconds
DECODE_GOAL, FIRST_GOAL = 0.12, 0.10

Key = tuple[str, str]  # workload and turn


@dataclass(frozen=True)
class Medians:
    """One turn on one server over all rounds. Times in seconds; `by_loop`: divided by that of the loop beside it."""

    together: int
    prompt: float
    reused: float
    known: float | None
    generated: float
    first: float
    per_token: float
    total: float
    first_by_loop: float
    per_token_by_loop: float
    hit_rate: float | None

    @staticmethod
    def of(turns: Sequence[Turn]) -> Medians:
        """Of the same turn in several rounds."""

        def middle(value: Callable[[Turn], float]) -> float:
            return median(map(value, turns))

        known = [turn.heard.known for turn in turns if turn.heard.known is not None]
        hits = [turn.heard.hit_rate for turn in turns if turn.heard.hit_rate is not None]
        return Medians(
            turns[0].together,
            middle(lambda turn: turn.heard.prompt),
            middle(lambda turn: turn.heard.reused),
            median(known) if known else None,
            middle(lambda turn: turn.heard.generated),
            middle(lambda turn: turn.heard.first),
            middle(lambda turn: turn.heard.per_token),
            middle(lambda turn: turn.heard.total),
            middle(lambda turn: turn.heard.first / turn.loop),
            middle(lambda turn: turn.heard.per_token / turn.loop),
            median(hits) if hits else None,
        )

    @property
    def context(self) -> float:
        """Tokens that a token of the answer sees, on the average."""
        return self.prompt + self.generated / 2

    @property
    def new(self) -> int:
        """Tokens that nobody had computed before; where no server tells, those that were computed."""
        return round(self.prompt - (self.reused if self.known is None else self.known))


def medians(turns: Sequence[Turn], server: str) -> Mapping[Key, Medians]:
    """By turn, in the order in which they were made."""
    found: dict[Key, list[Turn]] = {}
    for turn in turns:
        if turn.server == server:
            found.setdefault((turn.workload, turn.label), []).append(turn)
    return {key: Medians.of(each) for key, each in found.items()}


@dataclass(frozen=True)
class Fitted:
    """Our turns beside what was fitted, in seconds or in loops."""

    ours: Mapping[Key, Medians]
    cold: Sequence[Cold]
    by_loop: bool

    def _decode(self, turn: Medians) -> float:
        return turn.per_token_by_loop if self.by_loop else turn.per_token

    @cached_property
    def decode(self) -> DecodeFit:
        """Over the turns of agents that were alone."""
        return DecodeFit.of([(turn.context, self._decode(turn)) for turn in self.ours.values() if turn.together == 1])

    @cached_property
    def prefill(self) -> PrefillFit:
        """Over the medians of cold prompts of equal length."""
        times: dict[int, list[float]] = {}
        for each in self.cold:
            times.setdefault(each.tokens, []).append(each.seconds / (each.loop if self.by_loop else 1))
        return PrefillFit.of([(tokens, median(seconds)) for tokens, seconds in times.items()])

    def departure(self, key: Key) -> float | None:
        """Of the time a token from the line; of agents that are not alone none is asked."""
        turn = self.ours[key]
        return self.decode.departure(turn.context, self._decode(turn)) if turn.together == 1 else None

    def excess(self, key: Key) -> float:
        """Of the time to the first token beyond the prefill of what is new; of agents together, of all that is."""
        turn, (workload, label) = self.ours[key], key
        beside = [turn]
        if turn.together > 1:
            number = label.rpartition(" ")[2]
            beside = [
                each
                for (other, name), each in self.ours.items()
                if other == workload and each.together > 1 and name.rpartition(" ")[2] == number
            ]
        cost = sum(self.prefill.cost(each.new, round(each.prompt) - each.new) for each in beside)
        cost -= (len(beside) - 1) * self.prefill.base
        return (turn.first_by_loop if self.by_loop else turn.first) / cost - 1


def table(turns: Sequence[Turn], cold: Sequence[Cold]) -> str:
    """All turns of both servers as Markdown, and what they come to."""
    ours, theirs = medians(turns, OURS), medians(turns, THEIRS)
    plain, looped = Fitted(ours, cold, by_loop=False), Fitted(ours, cold, by_loop=True)
    lines = [
        "| turn | prompt | new | reused | first token, s | loops | beyond its prefill | in loops | ms a token | loops |"
        " off the line | in loops | llama-server reused | first token, s | loops | ms a token | loops |",
        "|" + "---|" * 17,
    ]
    for key, turn in ours.items():
        cells = [
            " ".join(key),
            f"{turn.prompt:,.0f}",
            f"{turn.new:,}",
            f"{turn.reused:,.0f}",
            *_times(turn)[:2],
            *(f"{fitted.excess(key):+.0%}" for fitted in (plain, looped)),
            *_times(turn)[2:],
            *("" if (off := fitted.departure(key)) is None else f"{off:+.0%}" for fitted in (plain, looped)),
        ]
        other = theirs.get(key)
        cells += ["", "", "", "", ""] if other is None else [f"{other.reused:,.0f}", *_times(other)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_sentences(plain, looped, turns)])


def _times(turn: Medians) -> list[str]:
    return [
        f"{turn.first:.2f}",
        f"{turn.first_by_loop:.1f}",
        f"{1e3 * turn.per_token:.2f}",
        f"{turn.per_token_by_loop:.2f}",
    ]


def _sentences(plain: Fitted, looped: Fitted, turns: Sequence[Turn]) -> list[str]:
    said = []
    for fitted, unit, scale in ((looped, "loops", 1.0), (plain, "ms", 1e3)):
        decode, prefill = fitted.decode, fitted.prefill
        departures = {key: each for key in fitted.ours if (each := fitted.departure(key)) is not None}
        excesses = {key: fitted.excess(key) for key in fitted.ours}
        furthest = max(departures, key=lambda key: abs(departures[key]))
        latest = max(excesses, key=lambda key: excesses[key])
        late = sum(each > FIRST_GOAL for each in excesses.values())
        said += [
            f"- in {unit}: a token takes {scale * decode.base:.4g} + {scale * decode.slope * 1000:.4g} for every"
            f" thousand tokens of context; furthest from that is {' '.join(furthest)}, {departures[furthest]:+.1%}"
            f" (asked: {DECODE_GOAL:.0%}); {sum(abs(each) > DECODE_GOAL for each in departures.values())} of"
            f" {len(departures)} turns are further than asked",
            f"- in {unit}: a prompt takes {scale * prefill.base:.4g} + {scale * prefill.per_token:.4g} a token +"
            f" {scale * prefill.per_pair * 1000:.4g} a token after every thousand; longest beyond that for its new"
            f" tokens is {' '.join(latest)}, {excesses[latest]:+.1%} (asked: {FIRST_GOAL:.0%}); {late} of"
            f" {len(excesses)} turns are longer than asked",
        ]
    for server in sorted({turn.server for turn in turns}):
        totals = {key: each.total for key, each in medians(turns, server).items()}
        worst = max(totals, key=lambda key: totals[key])
        slow = sum(total > SLOW for total in totals.values()) / len(totals)
        said.append(
            f"- {server}: the worst turn is {' '.join(worst)}, {totals[worst]:.1f} s; {slow:.0%} of the turns take more"
            f" than {SLOW:.0f} s"
        )
    hits = [turn.hit_rate for turn in plain.ours.values() if turn.hit_rate is not None]
    said += [f"- experts were found on the device in {median(hits):.0%} of the turns' routings"] if hits else []
    return said
