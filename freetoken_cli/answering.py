"""Printing an answer while it comes: the words to stdout, the thinking before them to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from freetoken_cli.chat import Chat, Finished, Message, Sampling, Statistics
from freetoken_cli.output import Output


def print_answer(
    chat: Chat, messages: Sequence[Message], sampling: Sampling, think: bool | None, output: Output, said: list[str]
) -> Statistics:
    """Stream the answer to `messages` and end its line.

    `said` collects the pieces, thinking left out, so that an interrupted caller still has what came.
    """
    finished = Finished("stop", Statistics())
    thought = ""
    try:
        with closing(chat.answer(messages, sampling, think)) as answer:
            for item in answer:
                if isinstance(item, Finished):
                    finished = item
                elif item.thinking:
                    output.aside(item.text)
                    thought = item.text or thought
                else:
                    if thought:
                        output.aside("" if thought.endswith("\n") else "\n")
                        thought = ""
                    said.append(item.text)  # first, so that an interrupt in between finds it
                    output.text(item.text)
    finally:
        if said and not said[-1].endswith("\n"):
            output.text("\n")
    if finished.reason == "length":
        output.note("The answer was cut off: it reached --max-tokens or the end of the context.")
    return finished.statistics


def print_statistics(statistics: Statistics, output: Output) -> None:
    """The statistics of an answer, to stderr."""
    rows = statistics.lines()
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        output.note(f"{label:<{width}}  {value}")
