"""Runs of the workloads: both servers turn by turn, a read loop over memory before and after every request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from engine.text.text import Text
from tests.bench.agents.servers import OURS, Server
from tests.bench.agents.speaking import Heard
from tests.bench.agents.workloads import FULL_CONTEXT, SHORTEST, Setting, Workload, converse, find

COLD = (512, 1024, 2048, 4096, 8192, 16_384, 61_440)  # tokens of cold prompts, of a context of 64k

Loop = Callable[[], float]
"""Reads memory once; seconds."""


@dataclass(frozen=True)
class Turn:
    """One request of a run, made together with `together - 1` others. `loop` is what a read loop took beside it."""

    workload: str
    label: str
    together: int
    server: str
    heard: Heard
    loop: float


@dataclass(frozen=True)
class Cold:
    """A prompt, or the beginning of one, of which nothing was known, and the seconds until it was read."""

    tokens: int
    seconds: float
    loop: float


def run_workload(workload: Workload, setting: Setting, servers: Sequence[Server], loop: Loop) -> list[Turn]:
    """Carry out a workload once with every server; of every turn all of them before the next."""
    talks = {server.name: converse(workload, setting) for server in servers}
    asks = {name: next(talk) for name, talk in talks.items()}
    turns: list[Turn] = []
    while asks:
        for server in servers:
            before = loop()
            heard = server.ask(workload, asks[server.name])
            beside = (before + loop()) / 2
            turns += [
                Turn(workload.name, ask.label, len(heard), server.name, each, beside)
                for ask, each in zip(asks[server.name], heard, strict=True)
            ]
            try:
                asks[server.name] = talks[server.name].send([each.answer for each in heard])
            except StopIteration:
                asks.pop(server.name)
    return turns


def read_cold(server: Server, context: int, run: int, loop: Loop) -> list[Cold]:
    """Prompts of random words and of several lengths; of long ones every beginning that the server tells of."""
    random, points = Random(f"cold {run}"), []
    words = [int(token) for token in server.bias]
    for length in COLD:
        ids = random.choices(words, k=round(length * context / FULL_CONTEXT))
        before = loop()
        read = server.read(ids)
        beside = (before + loop()) / 2
        points += [Cold(tokens, seconds, beside) for tokens, seconds in read]
    return points


def run_all(
    workloads: Sequence[Workload], context: int, rounds: int, text: Text, servers: Sequence[Server], loop: Loop
) -> tuple[list[Turn], list[Cold]]:
    """All rounds; who goes first alternates. Before them every server answers turns that do not count, the first call
    among them, for which a vocabulary is read."""
    ours = next(server for server in servers if server.name == OURS)
    run_workload(find(["W2"])[0], Setting(min(context, SHORTEST), text, -1), servers, loop)
    turns: list[Turn] = []
    cold: list[Cold] = []
    for number in range(rounds):
        cold += read_cold(ours, context, number, loop)
        for workload in workloads:
            turns += run_workload(workload, Setting(context, text, number), servers[:: -1 if number % 2 else 1], loop)
            print(f"  round {number + 1}/{rounds}: {workload.name}", flush=True)
    return turns, cold
