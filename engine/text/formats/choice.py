"""Which format a chat template writes."""

from __future__ import annotations

from engine.text.formats.known import CALLS, CHANNELS, THOUGHTS
from engine.text.formats.record import AnswerFormat


def format_of(evidence: str) -> AnswerFormat:
    """The format of the answers to a template: the first of the known ones whose signs are in its source, or in what it
    renders an answer with tool calls to.
    """

    def fits(signs: tuple[str, ...]) -> bool:
        return all(sign in evidence for sign in signs)

    channels = next((each for each in CHANNELS if fits(each.signs)), None)
    if channels is not None:
        return AnswerFormat(channels=channels)
    thought = next((each for each in THOUGHTS if fits(each.signs)), None)
    return AnswerFormat(thought, next((each for each in CALLS if fits(each.signs)), None))
