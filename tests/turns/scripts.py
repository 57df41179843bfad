"""Ten turns of a conversation, in the ways in which agents edit what they sent before.

A script is a generator: it yields the messages of a request, and is sent the text of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

TURNS = 10
KEPT = 2  # tool outputs, or observations, that stay as they were
WINDOW = 1500  # characters of the conversation that a sliding window keeps

Message = dict[str, Any]
Script = Generator[list[Message], str, None]

SYSTEM = "You are an assistant who works in a repository, calls tools, and says in a few words what it found. " * 4


def _system(text: str = SYSTEM) -> Message:
    return {"role": "system", "content": text}


def _user(turn: int, about: str = "Parser") -> Message:
    return {"role": "user", "content": f"{about}, question {turn}: what does part {turn} do, and who calls it? " * 2}


def _tool(turn: int) -> Message:
    lines = "".join(f"{line:03} value_{turn}_{line} = compute({turn * line})\n" for line in range(8))
    return {"role": "tool", "content": f"file part_{turn}.py\n{lines}"}


def _assistant(answer: str) -> Message:
    return {"role": "assistant", "content": answer}


def append_only() -> Script:
    """Every turn adds the answer and a question."""
    messages = [_system(), _user(0)]
    for turn in range(1, TURNS + 1):
        answer = yield list(messages)
        messages += [_assistant(answer), _user(turn)]


def thinking_stripped() -> Script:
    """The model thinks before it answers; thoughts stay while tools are called, and go with the next question."""
    messages = [_system(), _user(0)]
    for turn in range(1, TURNS + 1):
        thought = yield list(messages)
        said = {"role": "assistant", "content": f"Part {turn} is done.", "reasoning_content": thought}
        messages += [said, _tool(turn) if turn % 3 else _user(turn)]


def outputs_replaced() -> Script:
    """Tool outputs but for the latest become a placeholder."""
    messages = [_system(), _user(0)]
    for turn in range(1, TURNS + 1):
        answer = yield list(messages)
        messages += [_assistant(answer), _tool(turn)]
        tools = [index for index, message in enumerate(messages) if message["role"] == "tool"]
        for index in tools[:-KEPT]:
            messages[index] = {"role": "tool", "content": "[an old output, left out]"}


def observations_dropped() -> Script:
    """Only the latest pairs of an action and its observation are kept."""
    messages = [_system(), _user(0)]
    for turn in range(1, TURNS + 1):
        answer = yield list(messages)
        messages += [_assistant(answer), _tool(turn)]
        messages = [*messages[:2], *messages[2:][-2 * KEPT :]]


def window_slid() -> Script:
    """The system's message stays, and of the rest the latest characters, wherever that cuts."""
    messages = [_user(0)]
    for turn in range(1, TURNS + 1):
        answer = yield [_system(), *_latest(messages, WINDOW)]
        messages += [_assistant(answer), _tool(turn) if turn % 2 else _user(turn)]


def _latest(messages: list[Message], size: int) -> list[Message]:
    kept: list[Message] = []
    for message in reversed(messages):
        content = message["content"][-size:]
        kept.insert(0, {**message, "content": content})
        size -= len(content)
        if size <= 0:
            break
    return kept


def first_line_changed() -> Script:
    """The first line of the system's message is the time."""
    messages = [_user(0)]
    for turn in range(1, TURNS + 1):
        answer = yield [_system(f"It is {turn} o'clock.\n{SYSTEM}"), *messages]
        messages += [_assistant(answer), _user(turn)]


def agents_interleaved() -> Script:
    """Two agents with one system's message take turns."""
    agents = [[_system(), _user(0, "Lexer")], [_system(), _user(0, "Printer")]]
    for turn in range(1, TURNS + 1):
        messages = agents[turn % 2]
        answer = yield list(messages)
        messages += [_assistant(answer), _tool(turn)]


SCRIPTS: Mapping[str, Callable[[], Script]] = {
    "append only": append_only,
    "thinking stripped": thinking_stripped,
    "old outputs replaced": outputs_replaced,
    "last observations kept": observations_dropped,
    "sliding window": window_slid,
    "first line changed": first_line_changed,
    "two agents": agents_interleaved,
}
THINKING = frozenset({"thinking stripped"})
"""Scripts whose answers are thoughts."""
