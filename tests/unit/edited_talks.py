"""Conversations of ten turns, as token ids, in the ways in which agents edit what they sent before.

A script is a generator: it yields prompts, and is sent the answers, which are scripted too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

TURNS = 10
START, END, NEWLINE, THINK, THOUGHT, CALL, CALLED = range(1, 8)
ROLES = {"system": 11, "user": 12, "assistant": 13, "tool": 14}
OPENS = {START: True, END: False, THINK: True, THOUGHT: False, CALL: True, CALLED: False}
GENERATED = {token: opens for token, opens in OPENS.items() if token != START}


@dataclass(frozen=True)
class Ask:
    """One request: its prompt, and what the model is going to answer."""

    prompt: list[int]
    answer: list[int]

    @property
    def anchors(self) -> list[tuple[int, bool]]:
        """Edges in the prompt: how many tokens lie before each, and whether it opens."""
        edges = [(index, token) for index, token in enumerate(self.prompt) if token in OPENS]
        return sorted((index if OPENS[token] else index + 1, OPENS[token]) for index, token in edges)


Script = Generator[Ask, None, None]


@dataclass
class Writer:
    """Writes messages of random length whose words occur nowhere else."""

    seed: int
    longest: int = 250
    thinks_in_prompt: bool = False
    header: int = 0  # tokens with which every tool's output begins
    chance: random.Random = field(init=False)
    words: int = 100

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def body(self, least: int = 3, most: int | None = None) -> list[int]:
        count = self.chance.randint(least, most or self.longest)
        self.words += count
        return list(range(self.words - count, self.words))

    def message(self, role: str, body: list[int]) -> list[int]:
        return [START, ROLES[role], NEWLINE, *body, END, NEWLINE]

    def tool(self, body: list[int]) -> list[int]:
        return self.message("tool", [*range(20, 20 + self.header), *body])

    @property
    def opening(self) -> list[int]:
        """With which a prompt ends."""
        return [START, ROLES["assistant"], NEWLINE, *([THINK, NEWLINE] if self.thinks_in_prompt else [])]

    def thinking(self) -> list[int]:
        """Thinking as it is generated."""
        begin = [] if self.thinks_in_prompt else [THINK, NEWLINE]
        return [*begin, *self.body(), THOUGHT, NEWLINE]

    def call(self) -> list[int]:
        return [*self.body(3, 40), CALL, *self.body(5, 40), CALLED, END]


def append_only(writer: Writer) -> Script:
    """Every turn adds an answer and a question."""
    talk = writer.message("system", writer.body()) + writer.message("user", writer.body())
    for _ in range(TURNS):
        answer = [*writer.body(), END]
        yield Ask([*talk, *writer.opening], answer)
        talk += [*writer.opening, *answer, NEWLINE, *writer.message("user", writer.body())]


def thinking_stripped(writer: Writer) -> Script:
    """Only the last answer keeps its thinking."""
    begin = writer.message("system", writer.body()) + writer.message("user", writer.body())
    turns: list[tuple[list[int], list[int], list[int]]] = []  # thinking, answer, and the question after it
    for _ in range(TURNS):
        thought, said = writer.thinking(), [*writer.body(), END]
        talk = list(begin)
        for number, (old_thought, old_said, question) in enumerate(turns):
            last = number == len(turns) - 1
            talk += writer.opening if last else [START, ROLES["assistant"], NEWLINE]
            talk += [*(old_thought if last else []), *old_said, NEWLINE, *question]
        yield Ask([*talk, *writer.opening], [*thought, *said])
        turns.append((thought, said, writer.message("user", writer.body())))


def outputs_replaced(writer: Writer, kept: int = 2) -> Script:
    """Outputs of tools but for the latest become a placeholder."""
    placeholder = [90, 91, 92, 93, 94]
    begin = writer.message("system", writer.body()) + writer.message("user", writer.body())
    turns: list[tuple[list[int], list[int]]] = []
    for _ in range(TURNS):
        talk = list(begin)
        for number, (answer, output) in enumerate(turns):
            old = number < len(turns) - kept
            talk += [*writer.opening, *answer, NEWLINE, *writer.tool(placeholder if old else output)]
        call = writer.call()
        yield Ask([*talk, *writer.opening], call)
        turns.append((call, writer.body()))


def observations_kept(writer: Writer, kept: int = 3) -> Script:
    """Only the latest pairs of a call and its output stay."""
    begin = writer.message("system", writer.body()) + writer.message("user", writer.body())
    turns: list[list[int]] = []
    for _ in range(TURNS):
        call = writer.call()
        yield Ask([*begin, *(token for turn in turns[-kept:] for token in turn), *writer.opening], call)
        turns.append([*writer.opening, *call, NEWLINE, *writer.tool(writer.body())])


def window_slid(writer: Writer, width: int = 3000) -> Script:
    """After the system's message the latest tokens, wherever that cuts."""
    system, talk = writer.message("system", writer.body(1200, 1500)), list[int]()
    for _ in range(TURNS):
        talk += writer.message("user", writer.body(300, 800))
        answer = [*writer.body(), END]
        yield Ask([*system, *talk[-width:], *writer.opening], answer)
        talk += [*writer.opening, *answer, NEWLINE]


def first_line_changed(writer: Writer) -> Script:
    """The system's message begins with the time."""
    rules, talk = writer.body(), writer.message("user", writer.body())
    for turn in range(TURNS):
        answer = [*writer.body(), END]
        yield Ask([*writer.message("system", [30, 31, 40 + turn, *rules]), *talk, *writer.opening], answer)
        talk += [*writer.opening, *answer, NEWLINE, *writer.message("user", writer.body())]


def two_agents(writer: Writer) -> Script:
    """Two agents that share the system's message take turns; one of them thinks."""
    system = writer.message("system", writer.body())
    talks = [[*system, *writer.message("user", writer.body())] for _ in range(2)]
    for turn in range(TURNS):
        talk = talks[turn % 2]
        thought = writer.thinking() if turn % 2 and not writer.thinks_in_prompt else []
        call = writer.call()
        yield Ask([*talk, *writer.opening], [*thought, *call])
        talk += [*writer.opening, *call, NEWLINE, *writer.tool(writer.body())]


SCRIPTS: Mapping[str, Callable[[Writer], Script]] = {
    "append only": append_only,
    "thinking stripped": thinking_stripped,
    "outputs replaced": outputs_replaced,
    "observations kept": observations_kept,
    "window slid": window_slid,
    "first line changed": first_line_changed,
    "two agents": two_agents,
}
