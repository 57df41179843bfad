"""The closed loop: while serving, keeps the split where both branches end together, and can say why it is where it is.

It starts from what a probe measured and learns how many times as slow each branch really is (`slowness.py`). Every few
steps it asks whether the division that follows would save enough to be sure of it, so noise moves nothing. It leaves
balance only for a candidate that made more tokens a second over hundreds of tokens (`trials.py`), because only such a
stretch sees the hits that fills buy. Pure: it reads no clock, so a virtual machine drives it as real counters do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from engine.experts.slowness import Slowness
from engine.experts.split import MOST_TABLED, TABLE, Split, Timing
from engine.experts.trials import USUAL_RULES, TrialRules, Trials, Verdict
from engine.experts.usual import UsualMisses

MOST_TOKENS = 32  # of a step that decodes; the misses of prefill are another matter


@dataclass(frozen=True)
class Pace:
    """How slowly the loop moves; all in decode steps but the shares."""

    gain: float = 1 / 16  # share of a branch's surprise that a step makes it believe
    check: int = 16  # between two looks at the split
    saving: float = 0.02  # share of the branches' time, over all layers, that a change must save
    saving_of_one: float = 0.04  # or over the layers with one number of misses
    more: float = 1.1  # times as many fills for which a change may cost the share `free` of the time
    free: float = 0.005
    stubborn: float = 1.5  # by which each change raises these while conditions stay: no two splits take turns for ever
    memory: int = 256  # how long the usual misses are remembered
    idle: int = 256  # without work, until a branch is given some to see what it can do now
    glance: int = 16  # how long it is given some at most; a look that shows nothing new doubles the time to the next
    longest_idle: int = 8192
    settle: int = 64  # after a change of stance, before slowness is compared with later slowness
    shift: float = 1.3  # change of a branch's slowness that makes what was compared before worthless


USUAL_PACE = Pace()


class Stance(Enum):
    """What the split in force aims at, in words for people."""

    BALANCE = "both branches end together"
    FIRST = "at least one of any misses is filled"
    CARRY = "the remainder is carried across all layers"
    MORE = "more is filled than balance asks for"
    FILL = "all misses are filled"
    CPU = "the CPU computes all misses"


class Balancer:
    """Observes decode steps and now and then returns a split to put in force before the next one.

    Made with the split in force and what a probe measured; without a profile `DEFAULT_SPLIT` and None.
    """

    def __init__(
        self,
        split: Split,
        probed: Timing | None = None,
        pace: Pace = USUAL_PACE,
        rules: TrialRules = USUAL_RULES,
    ) -> None:
        self._split = split
        self._pace = pace
        self._slowness = Slowness(probed)
        self._usual = UsualMisses(pace.memory)
        self._trials = Trials(rules)
        self._stance = Stance.BALANCE if split.rule == TABLE else _STANCES[split.rule]
        self._candidate: Stance | None = None
        self._turn = 0
        self._steps = 0
        self._changes = 0  # while conditions stay
        self._glancing = 0
        self._patience = pace.idle
        self._compared: list[float] | None = None  # slowness when comparisons began to hold; None: not settled
        self._settling = pace.settle
        self._earned = ""  # how the stance was won, for `why`
        self._rejected = ""  # the last candidate that lost to it

    @property
    def split(self) -> Split:
        """The split in force."""
        return self._split

    @property
    def timing(self) -> Timing | None:
        """Both branches as steps show them, seconds a record; None before any step, where no probe spoke."""
        return self._slowness.timing

    @property
    def why(self) -> str:
        """A sentence for people: what the split in force aims at, on what grounds."""
        timing = self.timing
        if timing is None:
            return self._split.why
        fill, cpu = (branch.per_record * 1e6 for branch in (timing.fill, timing.cpu))
        reason = f"f = {self._split.fraction:.2f}, {self._aim_in_words()}: alone a fill takes {fill:.0f} us a record"
        return f"{reason}, the CPU {cpu:.0f} us{self._earned}{self._rejected}"

    def _aim_in_words(self) -> str:
        if self._trials.trying and self._candidate is not None:
            return f"on trial, {self._candidate.value}"
        return "looking what an idle branch can do" if self._glancing else self._stance.value

    def observe(
        self,
        counts: Sequence[Sequence[int]],
        fill_seconds: float,
        cpu_seconds: float,
        step_seconds: float,
        tokens: int,
    ) -> Split | None:
        """Take in a step; the split to put in force, or None while the present one stands.

        counts: a row (distinct, hits, misses, fills, cpu) for each MoE layer. fill_seconds, cpu_seconds: what each
        branch took from its start to its end, all layers together; 0 for one that had nothing to do. step_seconds: the
        whole step of `tokens` tokens. Steps of more than `MOST_TOKENS` and impossible readings are passed over.
        """
        if not 0 < tokens <= MOST_TOKENS or not 0 < step_seconds < math.inf:
            return None
        layers = Counter((int(row[3]) + int(row[4]), int(row[3])) for row in counts)
        self._usual.add((misses, count) for (misses, _), count in layers.items())
        self._slowness.learn(layers, (fill_seconds, cpu_seconds), self._pace.gain * (4 if self._glancing else 1))
        self._steps += 1
        if self.timing is None or not self._usual:
            return None
        if self._glancing:
            return self._glance_on()
        wanted = self._notice_shift() or self._run_trial(tokens, step_seconds)
        if wanted is None and self._steps % self._pace.check == 0 and not self._trials.trying:
            wanted = self._glance() or self._improve()
        return self._put(wanted)

    def _put(self, split: Split | None) -> Split | None:
        if split is None or split == self._split:
            return None
        self._split = split
        return split

    def _aim(self, stance: Stance) -> Split:
        """The split by which `stance` is carried out with what is known now."""
        timing = self.timing
        assert timing is not None
        if stance is Stance.FILL:
            return Split.all_fill(stance.value)
        if stance is Stance.CPU:
            return Split.all_cpu(stance.value)
        if stance is Stance.CARRY:
            return Split.carry(round(timing.fraction, 3), stance.value)
        if stance is Stance.MORE:
            balanced = Split.balanced(timing)
            more = [q + round((m - q) / 2) for m, q in enumerate(balanced.table)]
            return Split(TABLE, (1 + balanced.fraction) / 2, tuple(more), stance.value)
        split = (Split.balanced if stance is Stance.FIRST else Split.usual)(timing, why=stance.value)
        fill = Split.all_fill("the CPU is too slow to help")
        return fill if self._usual.alike(split, fill) else split

    def _improve(self) -> Split | None:
        """What `stance` asks for now, if that saves enough over the split in force, or fills more at no cost."""
        timing = self.timing
        assert timing is not None
        new, pace = self._aim(self._stance), self._pace
        if self._usual.alike(new, self._split):
            return None
        over_all, most = self._usual.saving(new, self._split, timing)
        doubt = pace.stubborn**self._changes
        free = over_all > -pace.free and self._usual.filled(new) > self._usual.filled(self._split) * pace.more * doubt
        if over_all < pace.saving * doubt and most < pace.saving_of_one * doubt and not free:
            return None
        self._changes += 1
        return new

    def _glance(self) -> Split | None:
        """Some work for a branch that has long had none, since what is known of it may be stale."""
        idle = [steps >= self._patience for steps in self._slowness.idle]
        if not any(idle):
            return None
        self._glancing = self._pace.glance
        if idle[0]:
            table = [min(m, 1) for m in range(MOST_TABLED + 1)]
            return Split(TABLE, 1 / MOST_TABLED, tuple(table), "a look at what fills take now")
        table = [max(m - 1, 0) for m in range(MOST_TABLED + 1)]
        return Split(TABLE, 1 - 1 / MOST_TABLED, tuple(table), "a look at what the CPU takes now")

    def _glance_on(self) -> Split | None:
        """End the look when the idle branch has shown what it can do."""
        self._glancing -= 1
        better = min(self._slowness.surprise) < -_NEWS
        if self._glancing and (better or any(self._slowness.idle)):
            return None
        nothing_new = self._glancing == self._pace.glance - 1
        self._patience = min(2 * self._patience, self._pace.longest_idle) if nothing_new else self._pace.idle
        self._glancing = 0
        self._slowness.idle = [0, 0]
        return self._put(self._aim(self._stance))

    def _notice_shift(self) -> Split | None:
        """Where a branch has become faster or slower, earlier comparisons count no more: back to balance."""
        if self._trials.trying:
            return None
        if self._compared is None:
            self._settling -= 1
            if self._settling <= 0:
                self._compared = list(self._slowness.factors)
            return None
        ratios = [now / then for now, then in zip(self._slowness.factors, self._compared, strict=True)]
        if all(1 / self._pace.shift < ratio < self._pace.shift for ratio in ratios):
            return None
        self._compared = list(self._slowness.factors)
        self._changes = 0
        self._trials.void()
        self._earned = self._rejected = ""
        if self._stance is Stance.BALANCE:
            return None
        self._stance = Stance.BALANCE
        return self._aim(self._stance)

    def _run_trial(self, tokens: int, step_seconds: float) -> Split | None:
        """Let the trial under way take in the step, and do what follows."""
        if self._trials.waiting:
            self._candidate = self._next_candidate() if self._trials.due(tokens) else None
        verdict = self._trials.step(tokens, step_seconds, self._candidate is not None)
        if verdict is Verdict.GO_ON:
            return None
        assert self._candidate is not None
        if verdict is Verdict.TRY:
            return self._aim(self._candidate)
        if verdict is Verdict.BACK:
            return self._aim(self._stance)
        if verdict is Verdict.REJECTED:
            self._rejected = f"; {_compared(self._trials.gain)} where {self._candidate.value}"
        else:
            self._earned = f"; {_compared(self._trials.gain)} than where {self._stance.value}"
            self._rejected = ""
            self._stance, self._compared, self._settling = self._candidate, None, self._pace.settle
        return self._aim(self._stance)

    def _next_candidate(self) -> Stance | None:
        """The next stance in turn that would divide common misses otherwise and is not plainly worse."""
        stances = list(Stance)
        for _ in stances:
            stance = stances[self._turn % len(stances)]
            self._turn += 1
            if stance is not self._stance and self._worth_trying(stance):
                return stance
        return None

    def _worth_trying(self, stance: Stance) -> bool:
        timing = self.timing
        assert timing is not None
        split = self._aim(stance)
        if self._usual.alike(split, self._split):
            return False
        now, then = (self._usual.cost(each, timing) for each in (self._split, split))
        # The CPU buys no hits, so it has to be about as fast at once; fills may pay later.
        return then < now * (1.1 if stance is Stance.CPU else 3.0)


def _compared(gain: float) -> str:
    return f"{abs(gain) * 100:.0f} % {'more' if gain > 0 else 'fewer'} tokens a second"


_NEWS = 0.15  # of the logarithm of what was expected of a branch over what it took
_STANCES = {"carry": Stance.CARRY, "fill": Stance.FILL, "cpu": Stance.CPU}
