"""How misses are divided before a step has been measured: by the machine's profile, or by what is safe without one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import FreetokenError
from engine.base.profile import Machine, load_profile
from engine.experts.sharing import fit_timing
from engine.experts.split import DEFAULT_SPLIT, Split, Timing, fraction

_SAFE = "Until steps have been measured, misses are divided as is safe on any machine."


@dataclass(frozen=True)
class SplitStart:
    """The first division, what it follows from where both branches were measured, and what the user is told of it."""

    split: Split
    timing: Timing | None = None
    notes: tuple[str, ...] = ()


def split_start(
    profile: str, machine: Machine, codecs: frozenset[str], uuid: str = "", record_bytes: float = 0.0
) -> SplitStart:
    """From the profile in a file, if it is one of `machine`; `codecs` are those of the model's experts.

    `record_bytes` is the mean size of the model's records, 0 for that of the profile's.

    A profile that is absent, of another machine or of an older release gives the default and a sentence; `profile` ""
    is that of nobody, which needs none.
    """
    if not profile:
        return SplitStart(DEFAULT_SPLIT)
    try:
        found = load_profile(Path(profile), machine, uuid)
    except FreetokenError as error:
        return SplitStart(DEFAULT_SPLIT, notes=(f"{error.message} {_SAFE} {error.remedy}".strip(),))
    if found.runs:
        timing = fit_timing(found.runs)
        if record_bytes and found.record_bytes:
            timing = timing.of_size(record_bytes / found.record_bytes)
        return SplitStart(Split.usual(timing, why="p / (p + c) of the device's profile"), timing)
    rates = [entry.rate.median for entry in found.experts if entry.codec in codecs]
    if found.link is None or not rates:
        missing = "a link to a GPU" if found.link is None else f"experts in {', '.join(sorted(codecs))}"
        return SplitStart(DEFAULT_SPLIT, notes=(f"The machine's profile says nothing of {missing}. {_SAFE}",))
    share = fraction(found.link.median, min(rates))
    return SplitStart(Split.of_fraction(share, "B_P / B_H of the machine's profile") if share else Split.all_cpu())
