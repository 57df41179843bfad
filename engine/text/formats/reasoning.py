"""Where reasoning begins and ends in the answers of a format, and what brings it to its end from outside."""

from __future__ import annotations

from dataclasses import dataclass

from engine.text.formats.record import AnswerFormat


@dataclass(frozen=True)
class ThoughtEdges:
    """The marker that `opens` reasoning, at the beginning of an answer alone where that is `first`, and those that
    close it. `closing` are the words that end it in the middle, right behind which `barred` would begin it again.
    """

    opens: str
    first: bool
    closes: tuple[str, ...]
    closing: tuple[str, ...]
    barred: str = ""


def thought_edges(form: AnswerFormat, calls: bool, formed: bool) -> ThoughtEdges | None:
    """The edges of reasoning in a format; None where there is none.

    The closing words lead on to the text, or, where `calls` of tools may come, to either. Where the text is to be
    `formed` by a grammar they end with what it begins behind.
    """
    channels, thought = form.channels, form.thought
    if channels is not None:
        answer = channels.channel if calls else channels.text
        return ThoughtEdges(
            opens=f"{channels.channel}{channels.thought}{channels.message}",
            first=False,
            closes=(channels.opens, *channels.closes),
            closing=(channels.closes[0] + channels.turn, answer),
            barred=channels.thought if calls else "",
        )
    if thought is None:
        return None
    closer = thought.region.closes[0]
    if thought.text is not None:
        return ThoughtEdges(thought.region.opens[0], False, thought.region.closes, (closer,))
    space = () if formed else ("\n\n",)
    return ThoughtEdges(thought.region.opens[0], True, thought.region.closes, ("\n", closer, *space))
