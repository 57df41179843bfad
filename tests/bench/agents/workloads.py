"""Four kinds of use as conversations that repeat exactly: what is asked, how long it is, how it goes on.

Lengths are in tokens of a context of 64k and are multiplied by `Setting.scale`; only calls of tools, and the tools
themselves, are as long in any context. A conversation is a generator: it yields requests, several where agents work at
the same time, and is sent their answers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from engine.text.text import Text
from tests.bench.agents.tools import TOOLS, Tool
from tests.bench.agents.words import NAMES, THINGS, text

FULL_CONTEXT = 65536
SHORTEST = 4096  # context: tools and calls are as long in any
CALL_TOKENS = 256  # the most that a call can be, with all the space that a schema allows, in tokens that are bytes
FEWEST_NEW = 16  # tokens of a message, where a small context leaves less

Message = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One request: its prompt is filled up to `prompt` tokens; its answer has `answer` tokens, or with 0 is a call."""

    prompt: int
    answer: int = 0


@dataclass(frozen=True)
class Workload:
    """One agent's `steps`, over one interface; before the step `agents_before` three others work at the same time."""

    name: str
    about: str
    kind: str  # of its texts and tools
    interface: str
    steps: Sequence[Step]
    agents: int = 0
    agents_before: int = 0
    agent_steps: Sequence[Step] = ()

    @property
    def requests(self) -> int:
        """How many requests one run makes."""
        return len(self.steps) + self.agents * len(self.agent_steps)


WORKLOADS = (
    Workload("W1", "one long answer", "code", "openai", (Step(4000, 8000),)),
    Workload(
        "W2",
        "a coding agent, three turns of two calls and an answer",
        "code",
        "openai",
        tuple(Step(12_000 + 3000 * turn, 512 if turn % 3 == 2 else 0) for turn in range(9)),
    ),
    Workload(
        "W3",
        "a coding agent that grows to 60k and starts three others",
        "code",
        "anthropic",
        tuple(Step(prompt, 512 if prompt == 60_000 else 0) for prompt in range(18_000, 60_001, 6000)),
        agents=3,
        agents_before=4,
        agent_steps=(Step(12_000), Step(15_000, 512)),
    ),
    Workload(
        "W4",
        "an agent for mail and calendar, thirteen turns on a base of 24k",
        "mail",
        "openai",
        tuple(Step(24_000 + 2500 * turn, 0 if turn % 2 == 0 else 512) for turn in range(13)),
    ),
)


@dataclass(frozen=True)
class Ask:
    """A request of one agent. `label` names it within its workload."""

    label: str
    messages: Sequence[Message]
    tools: Sequence[Tool]
    answer: int  # tokens; 0: a call

    @property
    def max_tokens(self) -> int:
        return self.answer or CALL_TOKENS


@dataclass(frozen=True)
class Answer:
    """What came back. A call is (id, name, arguments as JSON)."""

    text: str
    calls: Sequence[tuple[str, str, str]] = ()

    @property
    def message(self) -> Message:
        """As the next request of the conversation repeats it."""
        calls = [
            {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
            for identity, name, arguments in self.calls
        ]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}


Conversation = Generator[list[Ask], list[Answer], None]


@dataclass(frozen=True)
class Setting:
    """What a run depends on: the context that lengths are scaled to, the model's text, and the number of the run."""

    context: int
    text: Text
    run: int

    @property
    def scale(self) -> float:
        return self.context / FULL_CONTEXT

    def scaled(self, tokens: int) -> int:
        return max(1, round(tokens * self.scale))


@dataclass
class Agent:
    """One conversation as it grows. Texts depend on the run and the agent's name alone, and no two begin alike."""

    setting: Setting
    workload: Workload
    name: str
    reports: str = ""  # of other agents, which its next message begins with
    messages: list[Message] = field(default_factory=list)

    @cached_property
    def _random(self) -> Random:
        return Random(f"{self.setting.run} {self.workload.name} {self.name}")

    @cached_property
    def tools(self) -> Sequence[Tool]:
        """They name what an agent works on: every run and workload has tools of its own, which its agents share."""
        random = Random(f"{self.setting.run} {self.workload.name}")
        return TOOLS[self.workload.kind](f"{random.choice(NAMES)}'s {random.choice(THINGS)} {random.randrange(10**6)}")

    def ask(self, step: Step, label: str) -> Ask:
        """The next request: a message that fills the prompt up is added to the conversation."""
        if not self.messages:
            content = f"You are agent {self.name} and work with tools. Say in a few words what you found.\n"
            self._add({"role": "system", "content": content}, self.setting.scaled(step.prompt * 7 // 8))
        self._add(self._next(), self.setting.scaled(step.prompt))
        answer = self.setting.scaled(step.answer) if step.answer else 0
        return Ask(label, list(self.messages), self.tools, answer)

    def hear(self, answer: Answer) -> None:
        """Go on from an answer."""
        self.messages.append(answer.message)

    def _next(self) -> Message:
        begun, self.reports = self.reports, ""
        calls = self.messages[-1].get("tool_calls")
        if calls:
            (call,) = calls
            return {"role": "tool", "tool_call_id": call["id"], "content": f"{begun}Result:\n"}
        return {"role": "user", "content": f"{begun}Please look into this and go on.\n"}

    def _add(self, message: Message, prompt: int) -> None:
        """Add a message, made longer so that the prompt has `prompt` tokens."""
        encode = self.setting.text.encode
        count = len(self.setting.text.render([*self.messages, message], tools=self.tools).ids)
        more = text(self.workload.kind, self._random, max(FEWEST_NEW, prompt - count), encode)
        self.messages.append({**message, "content": message["content"] + more})


def converse(workload: Workload, setting: Setting) -> Conversation:
    """Carry out a workload."""
    agent = Agent(setting, workload, "one")
    for number, step in enumerate(workload.steps):
        if workload.agents and number == workload.agents_before:
            agent.reports = yield from _converse_beside(workload, setting)
        (answer,) = yield [agent.ask(step, f"turn {number + 1}")]
        agent.hear(answer)


def _converse_beside(workload: Workload, setting: Setting) -> Generator[list[Ask], list[Answer], str]:
    """Several agents, each request of all of them at once; their reports."""
    agents = [Agent(setting, workload, f"{letter} of three") for letter in "ABC"[: workload.agents]]
    answers: list[Answer] = []
    for number, step in enumerate(workload.agent_steps):
        answers = yield [agent.ask(step, f"agent {agent.name[0]}, turn {number + 1}") for agent in agents]
        for agent, answer in zip(agents, answers, strict=True):
            agent.hear(answer)
    return "\n".join(f"Agent {agent.name[0]}: {said.text}" for agent, said in zip(agents, answers, strict=True)) + "\n"


def find(names: Sequence[str]) -> Sequence[Workload]:
    """Workloads by their names."""
    by_name: Mapping[str, Workload] = {workload.name: workload for workload in WORKLOADS}
    return [by_name[name] for name in names]
